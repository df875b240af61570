"""One stop wish, from any source.

Invariants: a signal only raises a flag; the loop looks at it between steps and leaves in order,
with a checkpoint. The same wish twice is still one wish: Ctrl-C reaches a whole process group.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from stoker.fleet.local import STOP_SIGNALS


class StopWish:
    """Whether somebody wants this process to stop, and who."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __bool__(self) -> bool:
        return self.reason is not None

    def wish(self, reason: str) -> None:
        self.reason = self.reason or reason

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
