"""How anything is put on disk so that a reader never takes half of it for the whole.

Invariants: a file written here appears under its name complete or not at all; a folder counts only
when the marker written after everything else is there and what it lists is true. Some mounts
(object stores, FUSE, old network disks) can neither rename nor sync: there a file is written under
its name at once, and hashes alone tell whole from torn.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import IO, Any

from stoker.faults import reach

_CHUNK = 1 << 20
UNABLE = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV, errno.EBADF)
"""What a file system answers to a call that it does not have."""


def sha256_of(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_json(value: Any) -> str:
    """The hash of plain data, by the JSON text that `json.dumps` makes of it."""
    return sha256_of(json.dumps(value).encode())


def sha256_file(path: Path) -> str:
    """The hash of a file, read in pieces: any size, little memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Ask the disk to keep a file, or a folder's entries, through a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        reach("fsync")
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
    finally:
        os.close(handle)


def open_at_end(path: Path) -> IO[bytes]:
    """A file to go on writing at its end. Where a mount cannot append, for one writer only."""
    flags = os.O_RDWR | os.O_CREAT
    try:
        handle = os.open(path, flags | os.O_APPEND, 0o644)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        handle = os.open(path, flags, 0o644)
        os.lseek(handle, 0, os.SEEK_END)
    return os.fdopen(handle, "r+b", buffering=0)


def temporary(path: Path) -> Path:
    """A name beside `path` for the file while it is being written."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def publish(written: Path, path: Path) -> None:
    """Give a completely written temporary file its name."""
    sync(written)
    try:
        reach("rename")
        written.replace(path)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        shutil.copyfile(written, path)
        sync(path)
        written.unlink()
    sync(path.parent)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file, complete or not at all."""
    draft = temporary(path)
    draft.write_bytes(data)
    reach(f"{path.name}:written")
    publish(draft, path)
    reach(f"{path.name}:named")


def write_json(path: Path, value: Any) -> None:
    """Write plain data as readable JSON, complete or not at all."""
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Plain data as it is written: the same data, the same bytes."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
