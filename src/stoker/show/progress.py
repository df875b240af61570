"""The progress of a long job: a live bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from stoker.text import printable, say

SECONDS_BETWEEN_LINES = 30.0
TEXT_WIDTH = 64
"""Columns for the text and the remaining time beside a bar."""


class TimedLines:
    """Progress in a pipe: a line every SECONDS_BETWEEN_LINES."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, stream: TextIO | None = None
    ) -> None:
        self._clock, self._printed_at, self._stream = clock, clock(), stream

    def update(self, done: int, total: int, text: str) -> None:
        """Show that `done` of `total` (0: unknown) is done, in words: `text`."""
        if self._clock() - self._printed_at > SECONDS_BETWEEN_LINES:
            self._printed_at = self._clock()
            say(text, stream=self._stream)

    def close(self) -> None:
        pass


class LiveBar(TimedLines):
    """Progress on a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__()
        console = Console(file=stream)
        bar = BarColumn(bar_width=max(min(console.width - TEXT_WIDTH, 40), 4))
        columns = (bar, TextColumn("{task.description}", markup=False), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console)
        self._bar = self._progress.add_task("", total=None)
        self._progress.start()

    def update(self, done: int, total: int, text: str) -> None:
        shown = printable(text)
        self._progress.update(self._bar, completed=done, total=total or None, description=shown)

    def close(self) -> None:
        self._progress.stop()


def progress(stream: TextIO | None = None) -> TimedLines:
    """A live bar where the stream (standard output) is a terminal, else timed lines."""
    live = (stream or sys.stdout).isatty()
    return LiveBar(stream) if live else TimedLines(stream=stream)
