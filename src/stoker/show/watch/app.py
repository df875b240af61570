"""The living screen: Textual's part, with nothing of its own to say.

Invariants: files are read in another thread, so that a slow disk never holds up a key. That thread
is a daemon and has one look under way at most: quitting never waits for a disk. What it read comes
as one message with plain data; only the app's own thread draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.events import Resize
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from stoker.show.watch.layout import card_screen, footer, full_screen, help_screen
from stoker.show.watch.screen_data import AXES, LIVING, WatchedRun
from stoker.show.watch.watcher import RunsWatcher

ENDED_S = 10.0
"""Seconds between looks at least, once no run can change by itself."""
TICK_S = 0.25


class WatchScreen(Widget):
    """Lines of text, as many as fit."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Text] = []

    def show(self, lines: list[Text]) -> None:
        def content(lines: list[Text]) -> list[object]:
            return [(line.plain, line.style, line.spans) for line in lines]

        if content(lines) != content(self._lines):
            self._lines = lines
            self.refresh()

    def render_line(self, y: int) -> Strip:
        if y >= len(self._lines):
            return Strip.blank(self.size.width)
        return Strip(list(self._lines[y].render(self.app.console)))


class WatchApp(App[None]):
    """Looks at runs again and again, and shows them."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "stoker watch"
    BINDINGS: ClassVar = [
        Binding("q,ctrl+c", "quit", "quit", priority=True),
        Binding("x", "axis", "x-axis"),
        Binding("question_mark,h", "help", "help"),
        Binding("tab,right,down", "select(1)", "next", priority=True),
        Binding("shift+tab,left,up", "select(-1)", "previous", priority=True),
        Binding("enter", "open", "open"),
        Binding("escape", "leave", "back"),
        *(Binding(str(n + 1), f"open({n})", show=False) for n in range(9)),
    ]

    class Looked(Message):
        """A look has ended, or has come to the next run."""

        def __init__(self, runs: Sequence[WatchedRun], note: str) -> None:
            super().__init__()
            self.runs, self.note = runs, note

    def __init__(
        self,
        paths: Sequence[Path],
        every_s: float,
        clock: Callable[[], float] | None = None,
    ) -> None:
        super().__init__(ansi_color=True)
        self._watcher, self._every_s, self._clock = RunsWatcher(paths), every_s, clock
        self._runs: Sequence[WatchedRun] = ()
        self._note = ""
        self._axis, self._is_help, self._opened = 0, False, False
        self._selected: Path | None = None
        self._thread: threading.Thread | None = None
        self._looked_at = float("-inf")
        self.looks = 0
        """Looks that have ended."""

    def compose(self) -> ComposeResult:
        yield WatchScreen()

    def on_mount(self) -> None:
        self.look_if_due()
        self.set_interval(min(TICK_S, self._every_s), self.look_if_due)
        self.draw()

    def look_if_due(self) -> None:
        """Start a look, unless one is under way or the last is recent."""
        pause_s = self._every_s
        if self._runs and not any(run.state in LIVING for run in self._runs):
            pause_s = max(pause_s, ENDED_S)
        is_busy = self._thread is not None and self._thread.is_alive()
        if not is_busy and monotonic() - self._looked_at >= pause_s:
            self._thread = threading.Thread(target=self._look, name="stoker-watch", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        """In the thread: look at every run. The first time, each is shown as soon as it is read."""
        runs: list[WatchedRun] = []
        for run in self._watcher.looks(self._clock() if self._clock else None):
            runs.append(run)
            if not self.looks:
                self.post_message(self.Looked(list(runs), self._watcher.note))
        self._looked_at = monotonic()
        self.looks += 1
        self.post_message(self.Looked(runs, self._watcher.note))

    def on_watch_app_looked(self, message: Looked) -> None:
        if len(message.runs) >= len(self._runs) or self.looks:
            self._runs, self._note = message.runs, message.note
        self.draw()

    def on_resize(self, event: Resize) -> None:
        self.call_after_refresh(self.draw)

    @property
    def _number(self) -> int:
        """The selected run."""
        paths = [run.path for run in self._runs]
        return paths.index(self._selected) if self._selected in paths else 0

    def draw(self) -> None:
        """Show everything as it is known now."""
        width, height = self.size
        several = len(self._runs) > 1
        rows, axis = max(height - 1, 1), AXES[self._axis]
        if self._is_help:
            lines = help_screen(width, rows)
        elif not self._runs:
            lines = [Text("reading ...", "dim")]
        elif several and not self._opened:
            lines = card_screen(self._runs, self._number, width, rows, axis)
        else:
            lines = full_screen(self._runs[self._number], width, rows, axis)
        note = self._note
        if several and self._opened:
            note = f"run {self._number + 1} of {len(self._runs)}"
        lines += [Text()] * (rows - len(lines))
        self.query_one(WatchScreen).show([*lines, footer(width, axis, several, note)])

    def action_axis(self) -> None:
        self._axis = (self._axis + 1) % len(AXES)
        self.draw()

    def action_help(self) -> None:
        self._is_help = not self._is_help
        self.draw()

    def action_select(self, by: int) -> None:
        if self._runs:
            self._selected = self._runs[(self._number + by) % len(self._runs)].path
        self.draw()

    def action_open(self, number: int | None = None) -> None:
        if number is not None:
            if number >= len(self._runs):
                return
            self._selected = self._runs[number].path
        self._opened, self._is_help = True, False
        self.draw()

    def action_leave(self) -> None:
        self._is_help, self._opened = False, self._opened and self._is_help
        self.draw()
