"""The folder of a sink that writes files: one tracker at a time, and up to where it came.

Invariants: `position.json` is replaced as a whole, after the values that it counts were written. It
has the size of each file, so what a killed tracker wrote after it is recognised.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import IO, Any

from stoker.commit import open_at_end, write_json
from stoker.host.plain_file import read_plain
from stoker.locks.lock import FolderLock
from stoker.text import shown
from stoker.track.curve import CurvePosition
from stoker.track.sink import Refusal

POSITION = "position.json"
MOST_BYTES = 1 << 20


class SinkFolder:
    """The files of one run in one sink."""

    def __init__(self, path: str, run_id: str) -> None:
        self.path, self._run_id = Path(path), run_id
        self.sizes: dict[str, int] = {}
        """Bytes of each file that the position counts."""
        self._file: IO[bytes] | None = None
        self._lock: FolderLock | None = None

    def open(self, names: Collection[str] = ()) -> CurvePosition:
        """Take the folder, and return up to where its files have the curve; the start where that is
        not known. Raises Refusal where it is in use, is of another run, or has files of these names
        that no tracker wrote; and OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._file = open_at_end(self.path / ".lock")
        self._lock = lock = FolderLock(self.path / ".leases", self._file.fileno())
        if not lock.wait(lambda: not lock.is_silent):
            raise Refusal(f"another tracker writes to {shown(str(self.path))}")
        data = position_data(self.path)
        if data is None:
            if name := next((name for name in names if (self.path / name).exists()), None):
                where = shown(str(self.path))
                raise Refusal(f"{where} has a {name} of its own: name another --out")
            return CurvePosition()
        if data.get("run", self._run_id) != self._run_id:
            raise Refusal(f"{shown(str(self.path))} holds another run: name another --out")
        try:
            position = CurvePosition.of(data["position"])
            self.sizes = {str(name): int(size) for name, size in data["sizes"].items()}
        except (KeyError, ValueError, TypeError, AttributeError):
            return CurvePosition()
        return position

    def has_all(self, name: str) -> bool:
        """Whether a file is as long as the position says, and not longer."""
        path = self.path / name
        return path.is_file() and path.stat().st_size == self.sizes.get(name, 0)

    def save(self, position: CurvePosition) -> None:
        """Record that the files, with the `sizes` that they have now, have the curve up to here."""
        if self._lock and self._lock.lost():
            raise Refusal(f"another tracker writes to {shown(str(self.path))}")
        data = {"run": self._run_id, "position": position.data(), "sizes": self.sizes}
        write_json(self.path / POSITION, data)

    def close(self) -> None:
        if self._lock and self._file:
            self._lock.release()
            self._file.close()
            self._lock = None


def position_data(folder: Path) -> dict[str, Any] | None:
    """What is in the position file of a folder; None where there is none. Damaged: empty."""
    try:
        data = json.loads(read_plain(folder / POSITION, MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
