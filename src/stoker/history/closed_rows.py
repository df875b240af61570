"""Rows that are complete, for what is copied to another place.

Invariant: the rows of a file are the same whenever and however often it is read, as it grows: a row
that may still get steps is given when it is complete, or when the attempt is over.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

from stoker.host.plain_file import open_plain
from stoker.run.events import EventDamage, lines_of, summary_path
from stoker.run.kinds import Event, event_of, is_span
from stoker.run.rows import NEVER, ROW_S, SINGLE_STEPS, RowFolder
from stoker.run.summaries import RowReader, is_cut


class ClosedRowReader(RowReader):
    """The complete rows and the other events of one attempt and rank. With `every_step`, each step
    has a row of its own."""

    def __init__(
        self, events: Path, damage: EventDamage | None = None, *, every_step: bool = False
    ) -> None:
        super().__init__(events, damage, uses_summary=not every_step)
        self._summary_offset = 0
        self._row_s = 0.0 if every_step else ROW_S
        self._folder: RowFolder | None = None

    def read_closed(self, cut: int = NEVER, *, is_over: bool = False) -> Iterator[Event]:
        """Everything new that is complete, and the last row too where the attempt `is_over`."""
        try:
            with open_plain(self._path) as file:
                size = os.fstat(file.fileno()).st_size
                if self._uses_summary:
                    self._uses_summary = yield from self._follow_summary(file, size, cut)
                if is_over or not self._uses_summary:
                    yield from self._fold_on(file, size, cut)
        except (OSError, ValueError) as error:
            self._note(error)
        if is_over and self._folder:
            yield from self._folder.close()

    def _follow_summary(self, file: IO[bytes], size: int, cut: int) -> Generator[Event, None, bool]:
        """The new rows of the summary. Returns whether it can be followed further."""
        try:
            with open_plain(summary_path(self._path)) as summary:
                summary.seek(self._summary_offset)
                for line in lines_of(summary):
                    if not line.endswith(b"\n"):
                        break
                    row = event_of(line)
                    if row is None or not is_span(row.get("span")):
                        return False
                    if row["span"][1] > size:  # written after the size was asked for
                        break
                    if not self._fits(file, size, row):
                        return False
                    self._summary_offset = summary.tell()
                    yield from self._rows_of(file, row, cut)
        except (OSError, ValueError):
            return False
        return True

    def _rows_of(self, file: IO[bytes], row: Event, cut: int) -> Iterator[Event]:
        """What a line of the summary stands for, and the events before it that no line does."""
        begin, end = row["span"]
        if begin > self._offset:
            folder = self._folder_here(cut)
            yield from self._take_lines(folder, file, self._offset, begin)
            yield from folder.close()
        self._offset = end
        if not is_cut(row, cut):
            yield row
            return
        self._offset = begin
        folder = self._folder_here(cut)
        rows = [*self._take_lines(folder, file, begin, end), *folder.close()]
        yield from (row for row in rows if row["kind"] == "steps")

    def _folder_here(self, cut: int) -> RowFolder:
        kind = _LaterRows if self._offset else RowFolder
        return kind(cut, self._row_s)

    def _fold_on(self, file: IO[bytes], size: int, cut: int) -> Iterator[Event]:
        """The rows of the events that no summary covers. The last one stays open."""
        self._folder = self._folder or self._folder_here(cut)
        yield from self._take_lines(self._folder, file, self._offset, size)


class _LaterRows(RowFolder):
    """Folds what comes after the first steps of an attempt: none of it has a row of its own."""

    def __init__(self, cut: int, row_s: float) -> None:
        super().__init__(cut, row_s)
        self._made = SINGLE_STEPS + 1
