"""A folder of files, such as a checkpoint, in an object store.

    PREFIX/weights.safetensors, ...     its files
    PREFIX/manifest.json                after them
    PREFIX/COMMITTED                    the marker: written last

Invariants: a folder in the store counts only where its marker exists, and what it refers to
elsewhere is in the store by then. A prefix is used for one content by one process, so a request
that is applied late or twice leaves a committed folder as it is. On the disk a folder appears under
its name with all its files or not at all. Whether the files are those of the manifest is for the
hashes to say (`survive/manifest.py`).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

from stoker.commit import UNABLE, remove, sync, temporary
from stoker.stores.objects import Missing, Objects, StoreError
from stoker.text import shown, size

MANIFEST = "manifest.json"
MOST_FILES = 1000
MOST_BYTES = 1 << 40
"""Of all files of a folder."""
LARGE = 32 << 20
"""Bytes of a file from which on it is not held in memory."""
PLAIN = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
"""Names of files that are taken from a store: no path, and none that is hidden."""


def upload_folder(
    objects: Objects, prefix: str, folder: Path, marker: str, before_marker: Callable[[], None]
) -> int:
    """Upload the plain files of a folder, call `before_marker`, then write the marker; returns all
    bytes. Files whose names begin with a dot are left out. Nothing else may use the prefix, not
    even this process for another content: its late requests would change the folder.

    Raises StoreError where the store fails or a name is not plain, and OSError where a file cannot
    be read or the folder has no marker: the folder in the store then does not count."""
    prefix, mark = prefix.rstrip("/"), (folder / marker).read_bytes()
    names = [path.name for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
    names = [name for name in names if not name.startswith(".") and name != marker]
    _check(shown(str(folder)), [*names, marker])
    total = len(mark)
    for name in sorted(names, key=lambda name: (name == MANIFEST, name)):
        objects.upload(f"{prefix}/{name}", folder / name)
        total += (folder / name).stat().st_size
    before_marker()
    objects.write(f"{prefix}/{marker}", mark)
    return total


def download_folder(objects: Objects, prefix: str, folder: Path, marker: str) -> None:
    """Download a folder, in place of what is at that path. Raises Missing where the folder in the
    store has no marker or is being deleted, StoreError where it holds what no folder of Stoker
    does, OSError where the disk fails. The path is as it was until all files have arrived."""
    prefix = prefix.rstrip("/")
    sizes = _sizes(objects, prefix, marker)
    draft = temporary(folder)
    remove(draft)
    try:
        draft.mkdir(parents=True)
        for name in sorted(sizes, key=lambda name: (name == marker, name)):
            _fetch(objects, f"{prefix}/{name}", sizes[name], draft / name)
        remove(folder)
        _give_name(draft, folder, marker)
    finally:
        remove(draft)


def delete_folder(objects: Objects, prefix: str, marker: str) -> None:
    """Delete a folder from the store, its marker first: what is left after a kill does not count.
    Raises StoreError."""
    prefix = prefix.rstrip("/")
    objects.delete([f"{prefix}/{marker}"])
    objects.delete([item.key for item in objects.list(prefix)])


def _sizes(objects: Objects, prefix: str, marker: str) -> dict[str, int]:
    """The names and sizes of a folder's files. Raises Missing, StoreError."""
    place, start = shown(f"{objects.location}/{prefix}"), f"{prefix}/"
    listed = [item for item in objects.list(prefix) if item.key.startswith(start)]
    sizes = {item.key.removeprefix(start): item.bytes for item in listed}
    if marker not in sizes:
        raise Missing(f"{place} is not complete: it has no {marker}; take an earlier checkpoint")
    _check(place, list(sizes))
    if (total := sum(sizes.values())) > MOST_BYTES:
        raise StoreError(f"{place} has {size(total)}, more than a checkpoint can have")
    return sizes


def _check(place: str, names: list[str]) -> None:
    """Raise StoreError where these are not the names of a folder's files."""
    if len(names) > MOST_FILES:
        raise StoreError(f"{place} has {len(names):,} files, and {MOST_FILES:,} is the most")
    for name in names:
        if not PLAIN.fullmatch(name):
            raise StoreError(
                f"{place} has a file {shown(name[:200])}, which no checkpoint has: remove it"
            )


def _fetch(objects: Objects, key: str, length: int, path: Path) -> None:
    if length > LARGE:
        with path.open("wb") as file:
            objects.stream(key, length, lambda chunk: _write(file, chunk))
        sync(path)
        return
    data, _ = objects.read(key, length)
    if len(data) != length:
        raise StoreError(
            f"{objects.location}/{key} changed while it was read: is another program writing there?"
        )
    path.write_bytes(data)
    sync(path)


def _write(file: IO[bytes], chunk: memoryview) -> None:
    file.write(chunk)


def _give_name(draft: Path, folder: Path, marker: str) -> None:
    """Give a complete folder its final name; file by file, on a mount that cannot rename."""
    sync(draft)
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        folder.mkdir()
        for path in sorted(draft.iterdir(), key=lambda path: path.name == marker):
            shutil.copyfile(path, folder / path.name)
            sync(folder / path.name)
    sync(folder.parent)
