"""One pass over a file gives its hash and, in a shard, the hash of every image.

Invariants: memory holds one block a thread, and each byte is read once, wherever it comes from.
Hashing releases the interpreter's lock, so several threads read at the same time.
"""

from __future__ import annotations

import hashlib
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.stores.patience import Stopped

BLOCK = 1 << 20
SHORT_HASH = 16

Sink = Callable[[memoryview], None]
"""Takes the next block of a file."""

Progress = Callable[[int, int], None]
"""Called after each block, one call at a time, with the bytes read and the bytes in all."""


@dataclass(frozen=True)
class Rows:
    """The images of one shard as the index lists them, by offset."""

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


class Unreadable(Exception):
    """Why a file cannot be read, in a few words."""


class ByteCounter:
    """Adds up the bytes that all threads have read, and can stop them."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.done, self.stopped = 0, False
        self._progress, self.total = progress, total
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Raises Stopped where the threads shall stop."""
        if self.stopped:
            raise Stopped
        with self._lock:
            self.done += count
            if self._progress:
                self._progress(self.done, self.total)


def hash_blocks(
    read: Callable[[Sink], None], rows: Rows | None, counter: ByteCounter
) -> HashedFile:
    """Hash the blocks that `read` passes on; returns the hash, the size, and which of the images do
    not match."""
    whole, images, offset = hashlib.sha256(), ImageHashes(rows), 0

    def take(block: memoryview) -> None:
        nonlocal offset
        whole.update(block)
        images.update(offset, block)
        offset += len(block)
        counter.add(len(block))

    try:
        read(take)
    except Unreadable as error:
        return HashedFile(trouble=str(error))
    return HashedFile(whole.hexdigest(), offset, images.bad())


def read_blocks(path: Path, into: Sink) -> None:
    """Pass a file on in blocks, read-only. Raises Unreadable."""
    buffer = memoryview(bytearray(BLOCK))
    try:
        # Reading a pipe or a device would never end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable("not a regular file")
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                into(buffer[:count])
    except FileNotFoundError as error:
        raise Unreadable("missing") from error
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error


class ImageHashes:
    """Compares the images of a shard with their hashes, block by block."""

    def __init__(self, rows: Rows | None) -> None:
        self._rows = rows or Rows([], [], [])
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
