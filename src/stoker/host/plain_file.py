"""Read files that anyone could have put there.

Invariants: no read is endless: devices are refused, and a limited number of bytes is read. No read
waits for a writer that may never come: pipes are refused, except where a user names the file. Then
it may be a pipe that something writes to, such as `<(command)`.
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
        # A read of `most` bytes would have the system map them all, for a file of a few hundred.
        data = b"" if length > most else file.read(length + 1)
        if len(data) > length:  # it grows, or says nothing of its length, as in /proc
            data += file.read(most + 1 - len(data))
    if max(length, len(data)) > most:
        raise ValueError("it is too large")
    return data


@contextmanager
def open_given(path: Path) -> Iterator[tuple[bytes, IO[bytes]]]:
    """The first byte of a pipe, else nothing, and what follows it, of a file that a user names.
    Raises OSError where it cannot be opened, and NotPlain."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    with os.fdopen(handle, "rb") as file:
        mode, device = os.fstat(handle).st_mode, os.fstat(handle).st_rdev
        is_nothing = stat.S_ISCHR(mode) and device == os.stat(os.devnull).st_rdev  # noqa: PTH116
        if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or is_nothing):
            raise NotPlain("it is a device: name a file")
        start: bytes | None = b""
        if stat.S_ISFIFO(mode) and (start := file.raw.read(1)) == b"":  # None: nothing yet
            raise NotPlain("it is a pipe that nothing writes to: name a file")
        os.set_blocking(handle, True)
        yield start or b"", file


def read_given(path: Path, most: int) -> bytes:
    """The bytes of a file that a user names. Raises OSError, and ValueError where it has more than
    `most`."""
    with open_given(path) as (start, file):
        data = start + file.read(most + 1 - len(start))
    if len(data) > most:
        raise ValueError(f"it is larger than {most:,} bytes")
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
