"""The disk of one machine, and the part of `pathlib.Path` that checkpoints use on it.

Invariants: an operation takes no time, and may be the one at which its process is killed. A process
that is killed in mid-write leaves half of the file.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from simulation.world import current


class LocalDisk:
    """Files by name. A folder is there if it was made."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.folders: dict[str, None] = {"": None}


class LocalPath:
    """A path on the disk of the current process's machine."""

    __slots__ = ("disk", "text")

    def __init__(self, disk: LocalDisk, text: str) -> None:
        self.disk, self.text = disk, text

    def __truediv__(self, name: str) -> LocalPath:
        return LocalPath(self.disk, f"{self.text}/{name}")

    def __str__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> LocalPath:
        return LocalPath(self.disk, self.text.rpartition("/")[0])

    def with_name(self, name: str) -> LocalPath:
        return self.parent / name

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return self.text in self.disk.files

    def is_dir(self) -> bool:
        return self.text in self.disk.folders

    def is_symlink(self) -> bool:
        return False

    def iterdir(self) -> Iterator[LocalPath]:
        start = f"{self.text}/"
        names = [name for name in self.disk.files if name.startswith(start)]
        return (LocalPath(self.disk, name) for name in names)

    def read_bytes(self) -> bytes:
        if self.text not in self.disk.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", self.text)
        return self.disk.files[self.text]

    def open(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.read_bytes())

    def stat(self) -> SimpleNamespace:
        return SimpleNamespace(st_size=len(self.read_bytes()))

    def mkdir(self, parents: bool = False) -> None:
        current().operate()
        self.disk.folders[self.text] = None

    def write_bytes(self, data: bytes) -> None:
        if not self.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such folder", self.text)
        self.disk.files[self.text] = data[: len(data) // 2]
        current().operate()
        self.disk.files[self.text] = data

    def rename(self, target: LocalPath) -> None:
        current().operate()
        for path in self.iterdir():
            self.disk.files[f"{target}/{path.name}"] = self.disk.files.pop(path.text)
        del self.disk.folders[self.text]
        self.disk.folders[target.text] = None


def temporary(path: LocalPath) -> LocalPath:
    """`stoker.commit.temporary`."""
    return path.with_name(f".{path.name}.{current().number}.tmp")


def read_plain(path: Any, most: int = 0) -> bytes:
    """`stoker.host.plain_file.read_plain`."""
    return bytes(path.read_bytes())


def remove(path: LocalPath) -> None:
    """`stoker.commit.remove`."""
    for file in path.iterdir():
        current().operate()
        del path.disk.files[file.text]
    path.disk.folders.pop(path.text, None)


def sync(path: LocalPath) -> None:
    """`stoker.commit.sync`."""
    current()
