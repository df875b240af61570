"""One pass over a file gives its hash and, in a shard, the hash of every image.

Invariants: files are opened read-only, memory holds one block a thread, and each byte is read once.
Hashing releases the interpreter's lock, so several threads read at the same time.
"""

from __future__ import annotations

import hashlib
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BLOCK = 1 << 20
SHORT_HASH = 16

Progress = Callable[[int, int], None]
"""Called after each block, one call at a time, with the bytes read and the bytes in all."""


@dataclass(frozen=True)
class Rows:
    """The images of one shard as the index lists them, by offset."""

    first: int
    offset: list[int]
    length: list[int]
    hash: list[bytes]


@dataclass(frozen=True)
class HashedFile:
    sha256: str = ""
    bytes: int = 0
    bad: tuple[int, ...] = ()
    """The rows whose bytes do not match their hash, counted from the first row of the shard."""
    trouble: str | None = None
    """Why the file could not be read."""


class ByteCounter:
    """Adds up the bytes that all threads have read, and can stop them."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.done, self.stopped = 0, False
        self._progress, self._total = progress, total
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.done += count
            if self._progress:
                self._progress(self.done, self._total)


def hash_file(path: Path, rows: Rows | None, counter: ByteCounter) -> HashedFile:
    """Read a file once; returns its hash, its size, and which of its images do not match."""
    whole, images = hashlib.sha256(), ImageHashes(rows)
    buffer, offset = memoryview(bytearray(BLOCK)), 0
    try:
        # Reading a pipe or a device would never end.
        if not stat.S_ISREG(path.stat().st_mode):
            return HashedFile(trouble="not a regular file")
        with path.open("rb", buffering=0) as file:
            while not counter.stopped and (count := file.readinto(buffer)):
                whole.update(buffer[:count])
                images.update(offset, buffer[:count])
                offset += count
                counter.add(count)
    except FileNotFoundError:
        return HashedFile(trouble="missing")
    except OSError as error:
        return HashedFile(trouble=f"cannot be read: {error.strerror}")
    return HashedFile(whole.hexdigest(), offset, images.bad())


class ImageHashes:
    """Compares the images of a shard with their hashes, block by block."""

    def __init__(self, rows: Rows | None) -> None:
        self._rows = rows or Rows(0, [], [], [])
        self._row, self._hash = 0, hashlib.sha256()
        self._bad: list[int] = []

    def update(self, offset: int, block: memoryview) -> None:
        """Hash the images in the block that begins at this offset of the shard."""
        rows, end = self._rows, offset + len(block)
        while self._row < len(rows.offset) and rows.offset[self._row] < end:
            start = rows.offset[self._row]
            stop = start + rows.length[self._row]
            self._hash.update(block[max(start - offset, 0) : stop - offset])
            if stop > end:
                return
            if self._hash.digest()[:SHORT_HASH] != rows.hash[self._row]:
                self._bad.append(self._row)
            self._row, self._hash = self._row + 1, hashlib.sha256()

    def bad(self) -> tuple[int, ...]:
        """The rows that do not match, and those that lie behind the end of the file."""
        return (*self._bad, *range(self._row, len(self._rows.offset)))
