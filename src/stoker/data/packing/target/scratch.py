"""Folders on a local disk for what is on its way to a store, beside the cache of this machine.

    CACHE/packing/HASH/          what a pack into one location keeps here: its stage and its tables
    CACHE/packing/shards/NAME/   a shard that is being written

Invariants: the folder of a shard is locked by the process that writes it, and removed at its end.
One that a killed process left is removed by the next process that writes a shard.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stoker.stores.location import Location
from stoker.stores.settings import cache_folder


def work_folder(location: Location) -> Path:
    """The folder of this machine for packs into a location. It need not exist."""
    return cache_folder() / "packing" / location.digest


def large_lock() -> Path:
    """The file that is locked while a large image is decoded for a store."""
    return cache_folder() / "packing" / "large.lock"


@contextmanager
def scratch() -> Iterator[Path]:
    """A new folder for one shard, which is removed at the end. Raises OSError."""
    root = cache_folder() / "packing" / "shards"
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked_folder(root):
        remove_abandoned(root)
        folder = Path(tempfile.mkdtemp(dir=root))
        handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; others wait."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def remove_abandoned(root: Path) -> None:
    """Remove the folders that no process has locked."""
    for folder in root.iterdir():
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
