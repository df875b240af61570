"""What of some files the kernel holds in memory, and how to make it let go.

Invariant: nothing is claimed to be cold that was not looked at. Where the kernel cannot tell, the
answer is None. Files are only read. A host below a virtual machine may hold what this machine
dropped: that cannot be seen from here.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

OWN_IO = "/proc/self/io"


def drop(files: Sequence[Path]) -> None:
    """Ask the kernel to forget the contents of files. Some file systems (tmpfs) have no other place
    to keep them, and some kernels no such call: `held` tells."""
    for path in files:
        handle = os.open(path, os.O_RDONLY)
        try:
            # What is not written yet cannot be dropped.
            with suppress(OSError):
                os.fsync(handle)
            if hasattr(os, "posix_fadvise"):
                with suppress(OSError):
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def held(files: Sequence[Path]) -> float | None:
    """The share of the files' pages that is in memory; None where that cannot be known."""
    try:
        states = [pages_held(path) for path in files if path.stat().st_size]
    except (OSError, AttributeError, ValueError):
        return None
    pages = sum(len(state) for state in states)
    return sum(int(state.sum()) for state in states) / pages if pages else None


def pages_held(path: Path) -> NDArray[np.uint8]:
    """1 for each page of a file that is in memory, else 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        states = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
        failed = libc.mincore(
            ctypes.c_void_p(view.ctypes.data),
            ctypes.c_size_t(len(view)),
            ctypes.c_void_p(states.ctypes.data),
        )
        del view  # a map that is looked at cannot be closed
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore of {path}")
    return states & np.uint8(1)


def bytes_from_storage() -> int | None:
    """Bytes that this process has had fetched from storage so far; None where nobody counts."""
    with suppress(OSError, ValueError):
        for line in Path(OWN_IO).read_text().splitlines():
            name, _, count = line.partition(":")
            if name == "read_bytes":
                return int(count)
    return None
