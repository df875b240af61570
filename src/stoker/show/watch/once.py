"""One look at runs, printed as text. Needs no Textual."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stoker.show.watch.layout import card_screen, full_screen
from stoker.show.watch.screen_data import AXES
from stoker.show.watch.watcher import RunsWatcher
from stoker.text import say

COLUMNS = 100
"""Columns where there is no terminal."""


def once_lines(watcher: RunsWatcher, width: int, now: float | None = None) -> list[Text]:
    """A screen about all runs, as high as it needs to be."""
    runs = list(watcher.looks(now))
    if len(runs) == 1:
        lines = full_screen(runs[0], width, None, AXES[0])
    else:
        lines = card_screen(runs, -1, width, None, AXES[0])
    note = f"{watcher.note} runs: name others to see them"
    return [*lines, Text(), Text(note)] if watcher.note else lines


def print_once(paths: list[Path]) -> None:
    """Print a screen about runs: with colours to a terminal, else plain."""
    width = shutil.get_terminal_size((COLUMNS, 24)).columns
    lines = once_lines(RunsWatcher(paths), width)
    if not sys.stdout.isatty():
        say(*(line.plain.rstrip() for line in lines), wrap=False)
        return
    console = Console(highlight=False)
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True)
