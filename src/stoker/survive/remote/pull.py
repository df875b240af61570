"""Brings a folder of this machine up to the run that a store has.

Invariants: nothing is written outside the folder. A checkpoint is taken only with every hash right;
one that is not is passed over for the next older one. The folder of an attempt that was begun
exists, so no other attempt gets its number.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from stoker.commit import remove
from stoker.stores.commit_folder import download_folder
from stoker.stores.objects import Missing, Objects, StoreError
from stoker.survive.manifest import DIVERGED, MARKER, pointer, problem_of, step_and_save
from stoker.survive.remote.records import Content, pull_files, pull_segments
from stoker.text import size

MARK_BYTES = 64
"""Of a checkpoint's marker: the hash of its manifest."""
SPARE = 64 << 20
"""Bytes that stay free on the disk."""


def pull(
    objects: Objects,
    run: Path,
    content: Content,
    *,
    checkpoints: bool,
    own: bool = False,
    also: Collection[str] = (),
) -> set[str]:
    """Bring a folder up to what the store has: the records and, if asked for, the newest intact
    checkpoint, the best one and those in `also`. `own`: the newest attempt was made here, so its
    files are newer. Returns the checkpoints that are not intact in the store. Raises StoreError,
    OSError."""
    run.mkdir(parents=True, exist_ok=True)
    if content.attempt:
        (run / "attempts" / f"{content.attempt:04d}").mkdir(parents=True, exist_ok=True)
    pull_segments(objects, run)
    pull_files(objects, run, content.files, own=own)
    return pull_checkpoints(objects, run, content, also) if checkpoints else set()


def pull_checkpoints(
    objects: Objects, run: Path, content: Content, also: Collection[str] = ()
) -> set[str]:
    """Take the newest intact checkpoint, the best one and some others; returns those that are not
    intact. Raises StoreError, OSError."""
    chosen, damaged, is_found = {pointer(run / "best"), *also}, set[str](), False
    for name in sorted(content.checkpoints, key=step_and_save, reverse=True):
        folder = run / "checkpoints" / name
        if (is_found and name not in chosen) or folder.with_name(f"{name}{DIVERGED}").exists():
            continue
        if is_taken(objects, content.checkpoints[name], folder):
            is_found = True
        else:
            damaged.add(name)
    return damaged


def is_taken(objects: Objects, prefix: str, folder: Path) -> bool:
    """Whether a folder is the checkpoint of the store, taken now where it was not, with every hash
    right. Raises StoreError, OSError."""
    with suppress(Missing):
        mark, _ = objects.read(f"{prefix}/{MARKER}", MARK_BYTES)
        is_here = (folder / MARKER).is_file() and (folder / MARKER).read_bytes() == mark
        if not is_here or problem_of(folder):
            require_free(objects, prefix, folder)
            download_folder(objects, prefix, folder, MARKER)
        if not problem_of(folder):
            return True
        remove(folder)
    return False


def require_free(objects: Objects, prefix: str, folder: Path) -> None:
    """Raise StoreError where the disk has no room for a checkpoint of the store."""
    needed = sum(item.bytes for item in objects.list(prefix))
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if needed + SPARE > free:
        raise StoreError(
            f"{objects.location}/{prefix} has {size(needed)}, and {size(free)} are free for "
            f"{folder}: free some space, or name a larger disk in STOKER_CACHE"
        )
