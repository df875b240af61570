"""How much of some files is in the page cache, how to drop it, and bytes read from storage.

Invariants: files are only read. No file counts as cold unless the kernel says so; where the kernel
cannot tell, the answer is None. What the host of a virtual machine caches cannot be seen from here.
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

from stoker.host import proc
from stoker.host.counters import kernel_text

OWN_IO = "/proc/self/io"
COLD_SHARE = 0.05
"""Largest cached share of files at which a read of them counts as cold."""


def is_cold(cached_share: float | None) -> bool:
    """Whether files are not in the page cache; False where that is unknown."""
    return cached_share is not None and cached_share <= COLD_SHARE


def drop(files: Sequence[Path]) -> None:
    """Drop files from the page cache where the kernel can (not on tmpfs): `cached_share` tells."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            with suppress(OSError):  # pages that are not written yet cannot be dropped
                os.fsync(file.fileno())
            with suppress(OSError, AttributeError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cached_share(files: Sequence[Path]) -> float | None:
    """The share of the files' pages that is in the page cache; None where that is unknown."""
    try:
        states = [cached_pages(path) for path in files if path.stat().st_size]
    except (OSError, AttributeError, ValueError):
        return None
    pages = sum(len(state) for state in states)
    return sum(int(state.sum()) for state in states) / pages if pages else None


def cached_pages(path: Path) -> NDArray[np.uint8]:
    """1 for each page of a file in the page cache, else 0. Raises OSError where it is unknown."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = np.frombuffer(mapped, np.uint8)
        states = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
        failed = libc.mincore(
            ctypes.c_void_p(view.ctypes.data),
            ctypes.c_size_t(len(view)),
            ctypes.c_void_p(states.ctypes.data),
        )
        del view  # a map cannot be closed while an array refers to it
        if failed:
            raise OSError(ctypes.get_errno(), f"mincore of {path}")
    return states & np.uint8(1)


def bytes_from_storage() -> int | None:
    """Bytes that storage has delivered to this process; None where the kernel does not count."""
    return proc.fields(kernel_text(OWN_IO)).get("read_bytes")
