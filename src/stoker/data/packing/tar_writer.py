"""A fast writer of tar files whose members have a name and bytes, and no other attributes.

Invariant: the bytes are those that Python's `tarfile` writes in the USTAR format with its defaults
(mode 644, no owner, no time). Writing takes an eighth of `tarfile`'s time with images of 1 kB, and
a third with 50 kB.
"""

from __future__ import annotations

import tarfile
from functools import cache
from typing import IO

from stoker.errors import StokerError

_NAME, _SIZE, _SUM = slice(0, 100), slice(124, 136), slice(148, 156)
"""The fields of a header that differ between members."""
LARGEST = 8**11 - 1


class TarWriter:
    """Appends members to a file; `close` writes the end mark."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._offset = file, 0

    def add(self, name: str, data: bytes) -> int:
        """Append a member; returns the offset of its data."""
        padding = bytes(-len(data) % tarfile.BLOCKSIZE)
        self._file.write(b"".join((header(name, len(data)), data, padding)))
        start = self._offset + tarfile.BLOCKSIZE
        self._offset = start + len(data) + len(padding)
        return start

    def close(self) -> None:
        end = self._offset + 2 * tarfile.BLOCKSIZE
        self._file.write(bytes(end - self._offset + -end % tarfile.RECORDSIZE))


def header(name: str, size: int) -> bytes:
    """The header of a regular file; raises StokerError where the format has no room for it."""
    text = name.encode("ascii")
    if len(text) > 100 or size > LARGEST:
        raise StokerError(f"{name} ({size:,} bytes) does not fit into a tar")
    blank, blank_sum = template()
    filled, digits = bytearray(blank), b"%011o\0" % size
    filled[_NAME], filled[_SIZE] = text.ljust(100, b"\0"), digits
    filled[_SUM] = b"%06o\0 " % (blank_sum + sum(text) + sum(digits))
    return bytes(filled)


@cache
def template() -> tuple[bytes, int]:
    """A header without name and size, and the checksum of that header."""
    blank = bytearray(tarfile.TarInfo().tobuf(tarfile.USTAR_FORMAT))
    blank[_NAME], blank[_SIZE], blank[_SUM] = bytes(100), bytes(12), b" " * 8
    return bytes(blank), sum(blank)
