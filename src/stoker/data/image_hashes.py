"""A file read once, in blocks: its hash, and in the same pass the hash of every image in it.

Invariants: read-only, never more than a block in memory, and each byte read once. Hashing releases
the interpreter's lock, so that threads read side by side.
"""

from __future__ import annotations

import hashlib
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = 1 << 20
SHORT_HASH = 16

Progress = Callable[[int, int], None]
"""Called now and then, one call at a time, with bytes read and bytes in all."""


@dataclass(frozen=True)
class Rows:
    """The images of one shard, as the index has them, by offset."""

    first: int
    offset: list[int]
    length: list[int]
    hash: list[bytes]


@dataclass(frozen=True)
class HashedFile:
    """One file as it is."""

    sha256: str = ""
    bytes: int = 0
    bad: tuple[int, ...] = ()
    """Places among its rows whose bytes do not have their hash."""
    trouble: str | None = None
    """Why it could not be read."""


class Pace:
    """Counts what all threads have read, and lets them be stopped."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.done = 0
        self.stopped = False
        self._progress, self._total = progress, total
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count
            if self._progress:
                self._progress(self.done, self._total)

    def stop(self) -> None:
        self.stopped = True


def look_at(path: Path, rows: Rows | None, pace: Pace) -> HashedFile:
    """Read a file once: its hash, its size, and which of its images have lost theirs."""
    whole, images = hashlib.sha256(), Images(rows)
    buffer = memoryview(bytearray(BLOCK))
    place = 0
    try:
        # A pipe or a device in a shard's place would never end.
        if not stat.S_ISREG(path.stat().st_mode):
            return HashedFile(trouble="not a regular file")
        with path.open("rb", buffering=0) as file:
            while not pace.stopped and (count := file.readinto(buffer)):
                whole.update(buffer[:count])
                images.feed(place, buffer[:count])
                place += count
                pace.add(count)
    except FileNotFoundError:
        return HashedFile(trouble="missing")
    except OSError as error:
        return HashedFile(trouble=f"cannot be read: {error.strerror}")
    return HashedFile(whole.hexdigest(), place, tuple(images.end()))


class Images:
    """Hashes the images of a shard as its blocks pass by."""

    def __init__(self, rows: Rows | None) -> None:
        self._rows = rows or Rows(0, [], [], [])
        self._row = 0
        self._hash = hashlib.sha256()
        self._bad: list[int] = []

    def feed(self, place: int, block: memoryview) -> None:
        rows, end = self._rows, place + len(block)
        while self._row < len(rows.offset) and rows.offset[self._row] < end:
            start = rows.offset[self._row]
            stop = start + rows.length[self._row]
            self._hash.update(block[max(start - place, 0) : stop - place])
            if stop > end:
                return
            if self._hash.digest()[:SHORT_HASH] != rows.hash[self._row]:
                self._bad.append(self._row)
            self._row, self._hash = self._row + 1, hashlib.sha256()

    def end(self) -> Iterator[int]:
        """The places of the bad ones: those that differ, and those that the file has no more."""
        yield from self._bad
        yield from range(self._row, len(self._rows.offset))
