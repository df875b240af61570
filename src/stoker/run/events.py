"""Events: one JSON line each, appended to a file of one attempt and rank.

Invariants: events are only appended. Writing one never ends a run: a listener that raises is
dropped, and events that a full disk refuses stay in memory until it accepts them. Reading never
fails: damaged lines are passed over and counted, and no line longer than LONGEST_LINE is held in
memory.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from stoker.commit import open_at_end
from stoker.run.kinds import Event, event_of
from stoker.run.rows import RowFolder
from stoker.text import plural

Listener = Callable[[Event], None]
LONGEST_LINE = 1 << 20
"""Bytes of a line; a longer one counts as damaged."""


class EventDamage:
    """The files of events with damage, as far as they were read."""

    def __init__(self) -> None:
        self.lines: dict[Path, int] = {}
        """How many lines of a file were passed over."""
        self.unreadable: dict[Path, str] = {}
        """Why a file could not be read."""

    def notes(self, below: Path) -> list[str]:
        """One note about all damage; none if there is none. Paths are relative to `below`."""
        parts = []
        if count := sum(self.lines.values()):
            files = plural(len(self.lines), "file") + ", the first is "
            where = f"{files if len(self.lines) > 1 else ''}{min(self.lines).relative_to(below)}"
            parts.append(f"{plural(count, 'damaged line')} passed over in {where}")
        if self.unreadable:
            path = min(self.unreadable)
            more = f" and {len(self.unreadable) - 1} more" if len(self.unreadable) > 1 else ""
            reason = self.unreadable[path]
            parts.append(f"{path.relative_to(below)}{more} cannot be read ({reason})")
        return [f"{'; '.join(parts)}: checkpoints are not affected"] if parts else []


def read_events(path: Path, damage: EventDamage | None = None) -> Iterator[Event]:
    """The events of a file, in their order; none where there is no file. EventDamage is counted."""
    damage = damage or EventDamage()
    count = 0
    try:
        if not path.is_file():  # opening a pipe would wait for its writer
            if os.path.lexists(path):
                damage.unreadable[path] = "not a file"
            return
        with path.open("rb") as file:
            for line in lines_of(file):
                if event := event_of(line):
                    yield event
                elif line.endswith(b"\n"):  # without it, a killed writer left half a line
                    count += 1
                    damage.lines[path] = max(damage.lines.get(path, 0), count)
    except OSError as error:
        damage.unreadable[path] = error.strerror or str(error)


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file. Of one longer than LONGEST_LINE only the line break is left."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            line = b"\n"
        yield line


def summary_path(events: Path) -> Path:
    """Where the summary of a file of events is, see run/summaries.py."""
    return events.with_suffix(".summary.jsonl")


class LineFile:
    """Appends lines to a file. What the disk refuses stays in memory until it accepts it."""

    def __init__(self, path: Path) -> None:
        self._file = open_at_end(path)
        self._pending = bytearray()
        self.end = os.fstat(self._file.fileno()).st_size
        """Where the next line begins."""

    def append(self, line: bytes) -> None:
        self._pending += line
        self.end += len(line)

    def flush(self) -> bool:
        """Pass all lines to the system; False if the disk refuses."""
        try:
            while self._pending:
                written = os.write(self._file.fileno(), self._pending)
                del self._pending[:written]
        except OSError:
            return False
        return True

    def sync(self) -> None:
        with suppress(OSError):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self.flush()
        self._file.close()


class Events:
    """Appends events to one file, passes each to the listeners, and keeps a summary beside it."""

    def __init__(self, path: Path, listeners: tuple[Listener, ...] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines, self._rows = LineFile(path), RowFolder()
        self._summary: LineFile | None = None
        with suppress(OSError):
            self._summary = LineFile(summary_path(path))
        self._listeners = list(listeners)

    def write(self, kind: str, **facts: Any) -> None:
        event = {"kind": kind, "time": time.time(), **facts}
        begin = self._lines.end
        self._lines.append(json.dumps(event).encode() + b"\n")
        self._summarise(lambda: self._rows.take(event, (begin, self._lines.end)))
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                self._listeners.remove(listener)

    def _summarise(self, rows: Callable[[], list[Event]]) -> None:
        """Add rows to the summary. Where that fails, readers fold the rest from the events."""
        if self._summary is None:
            return
        try:
            for row in rows():
                self._summary.append(json.dumps(row, separators=(",", ":")).encode() + b"\n")
        except Exception:
            self._summary = None

    def flush(self) -> bool:
        """Pass all events to the system, so that they survive a kill; False if the disk refuses.
        The summary comes second: it never tells of events that are not in their file."""
        flushed = self._lines.flush()
        if flushed and self._summary:
            self._summary.flush()
        return flushed

    def sync(self) -> None:
        """Sync the flushed events to the disk, so that they survive a power cut."""
        self._lines.sync()

    def close(self) -> None:
        self._summarise(self._rows.close)
        if self._lines.flush() and self._summary:
            self._summary.close()
        self._lines.close()
