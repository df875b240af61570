"""Events: one JSON line each, appended to a file of one attempt and rank.

Invariants: events are only ever appended. A listener that raises is dropped, and what a full disk
does not take is kept in memory until it does: writing an event never ends a run.
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


def is_event(thing: object) -> bool:
    """Whether a line of a file that anybody may have touched is an event."""
    return isinstance(thing, dict) and isinstance(thing.get("kind"), str)


class Events:
    """Appends events to one file, and shows each to the listeners.

    A sink can never hurt a run: a listener that raises is dropped, and what a full disk does not
    take is kept in memory until it does.
    """

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
        """Hand everything to the operating system: a kill cannot take it back. False if the disk
        does not take it; the next flush goes on where this one stopped."""
        try:
            while self._pending:
                written = os.write(self._file.fileno(), self._pending)
                del self._pending[:written]
        except OSError:
            return False
        return True

    def sync(self) -> None:
        """Ask the disk to keep what was flushed through a power cut."""
        with suppress(OSError):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self.flush()
        self._file.close()
