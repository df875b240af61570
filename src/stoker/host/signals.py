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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
)
"""The signals by which schedulers, terminals and users ask a process to stop."""
ARRIVAL_S = 1.0
"""How long a signal may take to reach all processes of a command, where it is sent to each."""
_PR_SET_PDEATHSIG = 1


def stop_signals() -> list[signal.Signals]:
    """The stop signals to handle: not SIGHUP where it is ignored, as `nohup` asks for."""
    ignored = {n for n in (signal.SIGHUP,) if signal.getsignal(n) == signal.SIG_IGN}
    return [number for number in STOP_SIGNALS if number not in ignored]


@contextmanager
def delayed_signals() -> Iterator[None]:
    """A block in which processes can be started: they inherit blocked stop signals, which may reach
    all processes of a command, because the parent decides when they stop. Stop signals that arrive
    in the block are raised when it ends."""
    arrived: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    handlers: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            # The mask is for this thread only, and another may take the signal: so handlers too.
            for number in stop_signals():
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


def ignore_stop_signals() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def unblock_stop_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def begin_helper(parent: int) -> None:
    """Runs in a process that works for its parent alone, before its program: it dies with its
    parent, and stop signals do nothing until it listens for them, since the parent decides."""
    end_with_parent(parent, signal.SIGKILL)
    block_stop_signals()


def await_signals() -> None:
    """Wait for a stop signal that may be on its way here: another process of this command has died,
    perhaps of the same one. Whatever handles it may raise."""
    time.sleep(ARRIVAL_S)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Receive this signal when the parent dies, whatever the cause (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)  # the parent died before this call
