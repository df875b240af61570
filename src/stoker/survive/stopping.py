"""One stop wish, from any source.

Invariants: a signal only raises a flag; the loop looks at it between steps and leaves in order,
with a checkpoint. The same wish twice is still one wish: Ctrl-C reaches a whole process group.
Where nothing can be lost and nothing is looked at for long (compiling), a wish is an exception.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from stoker.fleet.local import STOP_SIGNALS


class StopNow(BaseException):
    """The wish, where waiting for the next look would take too long."""


class StopWish:
    """Whether somebody wants this process to stop, and who."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.notes: list[str] = []
        """What whoever watches for us has to say."""
        self._before: dict[signal.Signals, Any] = {}
        self._deadline = float("inf")
        self._at_once = False

    def __bool__(self) -> bool:
        if time.monotonic() > self._deadline:
            self.wish("its time limit")
        return self.reason is not None

    def wish(self, reason: str) -> None:
        self.reason = self.reason or reason
        if self._at_once and threading.current_thread() is not threading.main_thread():
            # The main thread hears signals only; the handler raises there.
            os.kill(os.getpid(), signal.SIGUSR1)

    def after(self, seconds: float) -> None:
        """Wish it when so many seconds have passed."""
        self._deadline = time.monotonic() + seconds

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A wish that comes in here raises StopNow, as does one that came before."""
        self._at_once = True
        try:
            if self:
                raise StopNow
            yield
        finally:
            self._at_once = False

    def listen(self) -> None:
        """Take the stop signals of this process."""
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._caught)

    def release(self) -> None:
        """Give the signals back to whoever had them."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self.wish(signal.Signals(number).name)
        if self._at_once:
            self._at_once = False
            raise StopNow
