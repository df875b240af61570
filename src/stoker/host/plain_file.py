"""Read files that anyone could have put there.

Invariants: no read waits or is endless: pipes and devices are refused, and so many bytes are read
at most.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

LARGEST_JSON = 1 << 26
"""Bytes of a file that describes a run, a checkpoint or an export; a larger one is not read."""


class NotPlain(ValueError):
    """A folder, a pipe or a device stands where a plain file is expected."""


@contextmanager
def open_plain(path: Path) -> Iterator[IO[bytes]]:
    """A plain file, to be read. Raises OSError where it cannot be opened, and NotPlain."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotPlain("it is not a plain file")
    with os.fdopen(handle, "rb") as file:
        yield file


def read_plain(path: Path, most: int = LARGEST_JSON) -> bytes:
    """The bytes of a plain file. Raises OSError, and ValueError where it has more than `most`."""
    with open_plain(path) as file:
        length = os.fstat(file.fileno()).st_size
        data = b"" if length > most else file.read(most + 1)
    if max(length, len(data)) > most:
        raise ValueError("it is too large")
    return data


def head_and_tail(path: Path, most: int, begin: int = 0) -> tuple[list[bytes], list[bytes]]:
    """The complete lines among the first and the last `most` bytes of a plain file, or of what
    comes from `begin` on. No line is in both. Raises OSError and ValueError."""
    with open_plain(path) as file:
        file.seek(begin)
        head = file.read(most)
        head = head[: head.rfind(b"\n") + 1]
        middle, end = begin + len(head), file.seek(0, os.SEEK_END)
        start = max(end - most, middle)
        file.seek(start)
        tail = file.read(most)
    lines = tail[: tail.rfind(b"\n") + 1].splitlines()
    return head.splitlines(), lines if start == middle else lines[1:]
