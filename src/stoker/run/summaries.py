"""Summaries of events: `rank0.summary.jsonl` beside `rank0.jsonl`, about a tenth of its size.

Its lines are the same events, in the same order, except that steps and probes are folded into rows.
Each line has a `span`: the bytes of the events that it stands for.

Invariants: a summary holds nothing that the events do not. What it lacks, or what does not fit, is
folded from the events by the same code, so a reader of rows gets all of an older run, and the last
seconds of one that runs or was killed. No file can make a reader fail or wait.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from stoker.host.plain_file import open_plain
from stoker.run.events import EventDamage, lines_of, summary_path
from stoker.run.kinds import Event, event_of, is_span
from stoker.run.rows import NEVER, RowFolder

_PROBES = b'{"kind":"probes"'
"""How the line of a row of probes begins."""
HEAD = 1 << 15
"""Bytes at the start of a file in which the machine and the start of an attempt are."""


class RowReader:
    """The rows and other events of one attempt and rank. Each `read` goes on where the last one
    ended, so that a run can be followed."""

    def __init__(
        self,
        events: Path,
        damage: EventDamage | None = None,
        *,
        uses_summary: bool = True,
        tail: int | None = None,
    ) -> None:
        """With a `tail`, steps and probes are read from so many bytes before the end on."""
        self._path, self._damage = events, damage or EventDamage()
        self._offset, self._uses_summary, self._tail = 0, uses_summary and tail is None, tail
        self._damaged = 0

    def read(
        self, cut: int = NEVER, needs_probes: Callable[[], bool] = lambda: True
    ) -> Iterator[Event]:
        """Everything up to the last complete line. No row crosses the position `cut`. Rows of
        probes that are not needed may be left out, which saves most of the time."""
        try:
            with open_plain(self._path) as file:
                size = os.fstat(file.fileno()).st_size
                if self._tail is not None and size > self._tail + HEAD:
                    yield from self._skip(file, size - self._tail)
                self._tail = None
                if self._uses_summary:
                    self._uses_summary = False
                    yield from self._read_summary(file, size, cut, needs_probes)
                yield from self._fold(file, self._offset, size, cut)
        except (OSError, ValueError) as error:
            self._note(error)

    def _note(self, error: OSError | ValueError) -> None:
        """Note why the file cannot be read; one that is not there has no events."""
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            self._damage.unreadable[self._path] = error.strerror or str(error)
        elif isinstance(error, ValueError):
            self._damage.unreadable[self._path] = "not a file"

    def _skip(self, file: IO[bytes], begin: int) -> Iterator[Event]:
        """The first events that are no steps or probes. What follows begins with the first whole
        line after `begin`."""
        head = file.read(HEAD)
        for line in head[: head.rfind(b"\n") + 1].splitlines():
            if (event := event_of(line)) and event["kind"] not in ("step", "probe"):
                yield event
        file.seek(begin)
        next(lines_of(file), b"")
        self._offset = file.tell()

    def _read_summary(
        self, file: IO[bytes], size: int, cut: int, needs_probes: Callable[[], bool]
    ) -> Iterator[Event]:
        try:
            with open_plain(summary_path(self._path)) as summary:
                for line in lines_of(summary):
                    if line.startswith(_PROBES) and not needs_probes():
                        continue
                    row = event_of(line) if line.endswith(b"\n") else None
                    if row is None or not self._fits(file, size, row):
                        return
                    begin, end = row["span"]
                    if begin > self._offset:
                        yield from self._fold(file, self._offset, begin, cut)
                    self._offset = end
                    if is_cut(row, cut):
                        rows = self._fold(file, begin, end, cut)
                        yield from (row for row in rows if row["kind"] == "steps")
                    else:
                        yield row
        except (OSError, ValueError):
            return

    def _fits(self, file: IO[bytes], size: int, row: Event) -> bool:
        """Whether a line of the summary stands for whole lines of the events, in order."""
        if not is_span(row.get("span")):
            return False
        if row["kind"] == "steps" and not (
            row["count"] == len(row["own_s"]) == row["last"] - row["step"] + 1
        ):
            return False
        begin, end = row["span"]
        if not self._offset <= begin <= end <= size:
            return False
        return end == 0 or os.pread(file.fileno(), 1, end - 1) == b"\n"

    def _fold(self, file: IO[bytes], begin: int, end: int, cut: int) -> Iterator[Event]:
        """The rows and events of some bytes."""
        folder = RowFolder(cut)
        yield from self._take_lines(folder, file, begin, end)
        yield from folder.close()

    def _take_lines(
        self, folder: RowFolder, file: IO[bytes], begin: int, end: int
    ) -> Iterator[Event]:
        """The rows that are complete after the events of some bytes, and these events."""
        offset = begin
        file.seek(begin)
        for line in lines_of(file):
            if offset >= end or not line.endswith(b"\n"):  # a killed writer left half a line
                break
            # Of a line that is too long, only its break was given.
            span = offset, offset + len(line) if len(line) > 1 else file.tell()
            offset = span[1]
            self._offset = max(self._offset, offset)
            if event := event_of(line):
                yield from folder.take(event, span)
            else:
                self._damaged += 1
                self._damage.lines[self._path] = max(
                    self._damage.lines.get(self._path, 0), self._damaged
                )


def is_cut(row: Event, cut: int) -> bool:
    """Whether a row holds several steps, of which one begins at the cut or after it."""
    if row["kind"] != "steps" or row["count"] == 1:
        return False
    return bool(row["position"] <= cut < row["until"])
