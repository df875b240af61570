"""Tar files whose members differ in name and bytes alone: the shards.

Invariant: byte for byte what Python's `tarfile` writes in the USTAR format with its own defaults
(mode 644, no owner, no time). It takes an eighth of the time with 1 kB images and a third with
50 kB, which counts where images are small.
"""

from __future__ import annotations

import tarfile
from functools import cache
from typing import IO

from stoker.errors import StokerError

_NAME, _SIZE, _SUM = slice(0, 100), slice(124, 136), slice(148, 156)
"""Where they stand in a header."""
LARGEST = 8**11 - 1


class TarWriter:
    """Appends members to a file; `close` writes the end mark."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._at = file, 0

    def add(self, name: str, data: bytes) -> int:
        """Append a member; where its bytes begin."""
        padding = bytes(-len(data) % tarfile.BLOCKSIZE)
        self._file.write(b"".join((header(name, len(data)), data, padding)))
        begin = self._at + tarfile.BLOCKSIZE
        self._at = begin + len(data) + len(padding)
        return begin

    def close(self) -> None:
        end = self._at + 2 * tarfile.BLOCKSIZE
        self._file.write(bytes(end - self._at + -end % tarfile.RECORDSIZE))


def header(name: str, size: int) -> bytes:
    """The header of a plain file."""
    text = name.encode("ascii")
    if len(text) > 100 or size > LARGEST:
        raise StokerError(f"{name} ({size:,} bytes) does not fit into a tar")
    blank, its_sum = template()
    digits = b"%011o\0" % size
    made = bytearray(blank)
    made[_NAME] = text.ljust(100, b"\0")
    made[_SIZE] = digits
    made[_SUM] = b"%06o\0 " % (its_sum + sum(text) + sum(digits))
    return bytes(made)


@cache
def template() -> tuple[bytes, int]:
    """A header without name, size and checksum, and the sum of its bytes as a checksum counts."""
    blank = bytearray(tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT))
    blank[_NAME], blank[_SIZE] = bytes(100), bytes(12)
    blank[_SUM] = b" " * 8
    return bytes(blank), sum(blank)
