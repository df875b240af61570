"""Signals of this process: which ones ask it to stop, and how to delay them.

Invariants: a delayed signal is delivered later, never lost. A child that asked for it receives a
signal when its parent dies, whatever the cause (Linux).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""The signals by which schedulers, terminals and users ask a process to stop."""
_PR_SET_PDEATHSIG = 1


@contextmanager
def delayed_signals() -> Iterator[None]:
    """A block in which processes can be started: they inherit a blocked Ctrl-C, which a terminal
    sends to the whole process group, because the parent decides when they stop. Stop signals that
    arrive in the block are raised when it ends."""
    arrived: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handlers: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            # The mask is for this thread only, and another may take the signal: so handlers too.
            for number in STOP_SIGNALS:
                handlers[number] = signal.getsignal(number)
                signal.signal(number, lambda number, frame: arrived.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for late in arrived:
            signal.raise_signal(late)


def block_stop_signals() -> None:
    """Keep stop signals pending, also across exec: a program without handlers would die of them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def unblock_stop_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Receive this signal when the parent dies, whatever the cause (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before this call
