"""How far a long job is: a live bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from stoker.text import say

SECONDS_BETWEEN_LINES = 30.0
WORDS_WIDTH = 64
"""Columns for the text and the remaining time beside a bar."""


class TimedLines:
    """For a pipe."""

    def __init__(self) -> None:
        self._said_at = time.monotonic()

    def tell(self, done: int, total: int, words: str) -> None:
        """Done so much of a total, as said in words."""
        if time.monotonic() - self._said_at > SECONDS_BETWEEN_LINES:
            self._said_at = time.monotonic()
            say(words)

    def close(self) -> None:
        pass


class LiveBar(TimedLines):
    """For a terminal."""

    def __init__(self) -> None:
        super().__init__()
        console = Console()
        bar = BarColumn(bar_width=max(min(console.width - WORDS_WIDTH, 40), 4))
        columns = (bar, TextColumn("{task.description}"), TimeRemainingColumn())
        self._progress = Progress(*columns, console=console)
        self._bar = self._progress.add_task("", total=None)
        self._progress.start()

    def tell(self, done: int, total: int, words: str) -> None:
        self._progress.update(self._bar, completed=done, total=total or None, description=words)

    def close(self) -> None:
        self._progress.stop()


def progress() -> TimedLines:
    """What fits where the output goes."""
    return LiveBar() if sys.stdout.isatty() else TimedLines()
