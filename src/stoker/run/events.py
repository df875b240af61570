"""Events: one JSON line each, appended to a file of one attempt and rank.

Invariants: events are only appended. Writing one never ends a run: a listener that raises is
dropped, and events that a full disk refuses stay in memory until it accepts them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stoker.commit import open_at_end

Event = dict[str, Any]
Listener = Callable[[Event], None]


def is_event(value: object) -> bool:
    """Whether a parsed line is an event. The file may have been edited."""
    return isinstance(value, dict) and isinstance(value.get("kind"), str)


class Events:
    """Appends events to one file and passes each to the listeners."""

    def __init__(self, path: Path, listeners: tuple[Listener, ...] = ()) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open_at_end(path)
        self._pending = bytearray()
        self._listeners = list(listeners)

    def write(self, kind: str, **facts: Any) -> None:
        event = {"kind": kind, "time": time.time(), **facts}
        self._pending += json.dumps(event).encode() + b"\n"
        for listener in list(self._listeners):
            try:
                listener(event)
            except Exception:
                self._listeners.remove(listener)

    def flush(self) -> bool:
        """Pass all events to the system, so that they survive a kill; False if the disk refuses."""
        try:
            while self._pending:
                written = os.write(self._file.fileno(), self._pending)
                del self._pending[:written]
        except OSError:
            return False
        return True

    def sync(self) -> None:
        """Sync the flushed events to the disk, so that they survive a power cut."""
        with suppress(OSError):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self.flush()
        self._file.close()
