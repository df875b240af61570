"""Folders on a local disk for what is on its way to a store, beside the cache of this machine.

    CACHE/packing/HASH/          what a pack into one location keeps here: its stage and its tables
    CACHE/packing/shards/NAME/   a shard that is being written

Invariants: the folder of a shard is locked by the process that writes it, and removed at its end.
One that a killed process left is removed by the next process that writes a shard.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stoker.locks.lock import LEASES, FolderLock, locked
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
    with locked(root):
        remove_abandoned(root)
        folder = Path(tempfile.mkdtemp(dir=root))
        lock = FolderLock(folder, os.open(folder, os.O_RDONLY | os.O_CLOEXEC))
        lock.take()
    try:
        yield folder
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock.handle)


def remove_abandoned(root: Path) -> None:
    """Remove the folders that no process has locked."""
    for folder in root.iterdir():
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            lock = FolderLock(folder, handle)
            try:
                if folder.name != LEASES and lock.take():
                    lock.release()
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)
