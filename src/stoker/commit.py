"""Write files so that a reader never takes half of one for the whole.

Invariants: a file written here appears under its name complete or not at all. A folder counts only
where its marker, which is written last, exists and the files that it lists have their hashes. Some
mounts (object stores, FUSE, old network disks) can neither rename nor sync: there a file is written
under its final name, and only the hashes tell a complete file from a torn one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import IO, Any, Self

from stoker.faults import reach

_CHUNK = 1 << 20
UNABLE = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV, errno.EBADF)
"""The errors with which a file system answers a call that it does not support."""


def sha256_of(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_json(value: Any) -> str:
    """The hash of the JSON text that `json.dumps` makes of plain data."""
    return sha256_of(json.dumps(value).encode())


def sha256_file(path: Path) -> str:
    """The hash of a file of any size. It is read in chunks, so it takes little memory."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


class HashedWriter:
    """A large file that is hashed while it is written, in chunks. Writing and hashing a chunk
    release the interpreter lock.

    Invariant: `write` raises no OSError, because `torch.save` cannot handle one in the middle of an
    archive. What is written after an error is dropped, and leaving the context raises the error.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._file, self._digest = path, path.open("wb"), hashlib.sha256()
        self._small = bytearray()
        """Small parts, which wait until there is a chunk of them."""
        self._error: OSError | None = None
        self.bytes = 0

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def write(self, data: bytes | memoryview) -> int:
        """Append the data; returns their bytes."""
        view = memoryview(data).cast("B")
        if len(self._small) + len(view) < _CHUNK:
            self._small += view
            return len(view)
        self.flush()
        for begin in range(0, len(view), _CHUNK):
            self._put(view[begin : begin + _CHUNK])
        return len(view)

    def flush(self) -> None:
        """Write the small parts that wait."""
        small, self._small = self._small, bytearray()
        if small:
            self._put(memoryview(small))

    def _put(self, chunk: memoryview) -> None:
        if self._error:
            return
        try:
            self._file.write(chunk)
            self._file.flush()
            self._digest.update(chunk)
            self.bytes += len(chunk)
            reach(f"{self._path.name}:piece")
        except OSError as error:
            self._error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self.flush()
        with self._file:  # closing may fail as well, on some mounts
            if self._error and kind is None:
                raise self._error


def sync(path: Path) -> None:
    """Flush a file or folder to the disk, on a mount that can. Raises OSError if the disk fails."""
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
    """Open a file to append to it. On a mount that cannot append, only one process may write."""
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
    """The path, in the same folder, under which the file is written before it is published."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


def remove(path: Path) -> None:
    """Remove a file, a folder with all that is in it, or a link: what it points to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def publish(draft: Path, path: Path) -> None:
    """Give a complete temporary file its final name."""
    sync(draft)
    try:
        reach("rename")
        draft.replace(path)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        shutil.copyfile(draft, path)
        sync(path)
        draft.unlink()
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
    """Plain data as the bytes of readable JSON. The same data gives the same bytes."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
