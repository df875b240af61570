"""A disk that machines share, and the paths on it.

Invariants: each operation happens at one moment, and its caller may be killed or delayed before and
after it. A name is linked once. What was written is complete only after the write's second half: a
process that is killed between leaves an empty file.
"""

from __future__ import annotations

import errno
import io
import os as real_os
from collections.abc import Callable
from types import SimpleNamespace

from simulation.world import Machine, Process, Waiters, World, current, sleep


class Disk:
    """Files by name. Folders exist if they were made or something is in them."""

    def __init__(self, world: World, fineness: float) -> None:
        self.world = world
        self.fineness = fineness
        """The share of operations that take time, so that others come in between."""
        self.files: dict[str, bytes] = {}
        self.writes = 0
        self.written: dict[str, int] = {}
        """The number of the write that each file has from."""
        self.folders: dict[str, dict[str, None]] = {"": {}}
        self.loses_answers: Callable[[], bool] = lambda: False
        self.restored = Waiters()
        self.on_create: Callable[[Process, str], None] = lambda process, name: None
        self.on_remove: Callable[[Process, str], None] = lambda process, name: None

    def operate(self) -> Process:
        """Begin an operation of the current process. Raises OSError where the disk does not answer
        its machine; waits instead where the disk stalls."""
        process = current()
        process.operate()
        if self.world.rng.random() < self.fineness:
            sleep(self.world.rng.random() ** 4 * 0.5)
        machine = process.machine
        while machine.disk_out == "stall":
            self.restored.wait()
        if machine.disk_out:
            sleep(1.0)
            raise OSError(errno.EIO, "the disk does not answer")
        return process

    def reconnect(self, machine: Machine) -> None:
        machine.disk_out = ""
        self.restored.wake()

    def exists(self, name: str) -> bool:
        return name in self.files or name in self.folders

    def make_folder(self, name: str) -> None:
        while name not in self.folders:
            self.folders[name] = {}
            parent, _, last = name.rpartition("/")
            self.folders.setdefault(parent, {})[last] = None
            name = parent

    def put(self, name: str, data: bytes) -> None:
        """Raises FileNotFoundError where the folder does not exist."""
        folder, _, last = name.rpartition("/")
        if folder not in self.folders:
            raise FileNotFoundError(errno.ENOENT, name)
        self.files[name] = data
        self.writes += 1
        self.written[name] = self.writes
        self.folders[folder][last] = None

    def drop(self, name: str) -> bytes:
        if name not in self.files:
            raise FileNotFoundError(errno.ENOENT, name)
        folder, _, last = name.rpartition("/")
        del self.folders[folder][last]
        return self.files.pop(name)


class DiskPath:
    """A path on the disk of the current process: the part of `pathlib.Path` that is used."""

    __slots__ = ("disk", "text")

    def __init__(self, disk: Disk, text: str) -> None:
        self.disk, self.text = disk, text

    def __truediv__(self, name: str) -> DiskPath:
        return DiskPath(self.disk, f"{self.text}/{name}")

    def __str__(self) -> str:
        return self.text

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> DiskPath:
        return DiskPath(self.disk, self.text.rpartition("/")[0])

    def with_name(self, name: str) -> DiskPath:
        return self.parent / name

    def absolute(self) -> DiskPath:
        return self

    def exists(self) -> bool:
        self.disk.operate()
        return self.disk.exists(self.text)

    def stat(self) -> SimpleNamespace:
        size = len(self.read_bytes())
        return SimpleNamespace(st_size=size, st_ino=0, st_mtime_ns=self.disk.written[self.text])

    def chmod(self, mode: int) -> None:
        self.disk.operate()

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        self.disk.operate()
        self.disk.make_folder(self.text)

    def read_bytes(self) -> bytes:
        self.disk.operate()
        if self.text not in self.disk.files:
            raise FileNotFoundError(errno.ENOENT, self.text)
        return self.disk.files[self.text]

    def open(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self.read_bytes())

    def write_bytes(self, data: bytes) -> None:
        self.disk.operate()
        self.disk.put(self.text, b"")
        self.disk.operate()
        self.disk.put(self.text, data)

    def unlink(self, missing_ok: bool = False) -> None:
        process = self.disk.operate()
        try:
            self.disk.drop(self.text)
        except FileNotFoundError:
            if not missing_ok:
                raise
        else:
            self.disk.on_remove(process, self.text)

    def replace(self, target: DiskPath) -> None:
        process = self.disk.operate()
        data = self.disk.drop(self.text)
        if self.disk.exists(target.text):
            self.disk.on_remove(process, target.text)
        self.disk.put(target.text, data)
        self.disk.on_create(process, target.text)


def link(source: DiskPath, target: DiskPath) -> None:
    """Raises FileExistsError where the name exists; also where the disk's answer to the call that
    made it was lost and the machine has asked again."""
    disk = source.disk
    process = disk.operate()
    if target.text in disk.files:
        raise FileExistsError(errno.EEXIST, target.text)
    disk.put(target.text, disk.files[source.text])
    disk.on_create(process, target.text)
    if disk.loses_answers() and disk.world.rng.random() < 0.02:
        sleep(1.0)
        raise FileExistsError(errno.EEXIST, target.text)


def listdir(path: DiskPath) -> list[str]:
    path.disk.operate()
    if path.text not in path.disk.folders:
        raise FileNotFoundError(errno.ENOENT, path.text)
    return list(path.disk.folders[path.text])


class DiskOs:
    """`os`, as far as files on the disk go: a descriptor is a path."""

    O_WRONLY, O_CREAT, O_EXCL = real_os.O_WRONLY, real_os.O_CREAT, real_os.O_EXCL
    link = staticmethod(link)
    listdir = staticmethod(listdir)

    @staticmethod
    def open(path: DiskPath, flags: int, mode: int = 0o777) -> DiskPath:
        process = path.disk.operate()
        if flags & real_os.O_EXCL and path.text in path.disk.files:
            raise FileExistsError(errno.EEXIST, path.text)
        path.disk.put(path.text, b"")
        path.disk.on_create(process, path.text)
        return path

    @staticmethod
    def write(path: DiskPath, data: bytes) -> int:
        path.disk.operate()
        path.disk.put(path.text, path.disk.files[path.text] + data)
        return len(data)

    @staticmethod
    def fsync(path: DiskPath) -> None:
        path.disk.operate()

    @staticmethod
    def close(path: DiskPath) -> None:
        pass


def open_plain(path: DiskPath) -> io.BytesIO:
    """`stoker.host.plain_file.open_plain`."""
    return path.open("rb")


def sync(path: DiskPath) -> None:
    path.disk.operate()


def write_bytes(path: DiskPath, data: bytes) -> None:
    """`stoker.commit.write_bytes`: complete or not at all."""
    draft = path.with_name(f".{path.name}.{current().number}.tmp")
    draft.write_bytes(data)
    sync(draft)
    draft.replace(path)
