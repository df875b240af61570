"""Signals of this process: which ones ask it to stop, and how to hold them back for a while.

Invariants: a signal that is held back is delivered later, never lost. A child that asked for it
receives a signal when its parent dies, however the parent dies (Linux).
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
"""What schedulers, terminals and people send to a process that shall stop in order."""
_PR_SET_PDEATHSIG = 1


@contextmanager
def held_signals() -> Iterator[None]:
    """Start processes undisturbed: they never hear Ctrl-C, which reaches the whole group, for the
    parent decides; and the parent hears whatever came meanwhile as soon as this is over."""
    came: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handlers: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            # A mask is for one thread, and another may take the signal: the handler counts.
            for number in STOP_SIGNALS:
                handlers[number] = signal.getsignal(number)
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for heard in came:
            signal.raise_signal(heard)


def hold_stop_signals() -> None:
    """Let signals to stop wait until `hear_stop_signals`: also in a program that replaces this one,
    which would die of them before it has said what to do about them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def hear_stop_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Receive this signal when the parent dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)  # it has died before we could ask for that
