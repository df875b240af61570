"""A cache of files on a local disk, named by their hashes and shared by all processes of a host.

    FOLDER/files/SHA256            a file whose hash was checked when it arrived
    FOLDER/files/SHA256.part       a file that is being fetched

Invariants: a file under its hash is complete. The files, finished or not, take at most as many
bytes as the cache may have. Where there is no room, the file that was used least recently goes
first, and never one that a process has open. A file is fetched by one process at a time, and others
wait for it. All of it rests on locks of open files, which the kernel releases when a process ends,
however it ends: a kill leaves at most a `.part`, which the next process removes. The whole folder
may be deleted at any time.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.commit import UNABLE
from stoker.errors import BadRequest, StokerError
from stoker.faults import reach
from stoker.stores.patience import Patience
from stoker.text import size as size_text

Download = Callable[[Callable[[memoryview], None]], None]
"""Passes the bytes of a file on, in chunks and in order. It may raise StoreError or Stopped."""

NAME = re.compile(r"[0-9a-f]{64}")
PART = ".part"
POLL_S = 0.05
"""How often a process looks whether another one has finished a file."""
TRIES = 3
"""How often a file with a wrong hash is fetched."""
STILL_S = 60.0
"""A process that fetches a file and writes nothing for so long is not waited for."""


class WrongHash(StokerError):
    """A file that arrived several times with another hash than it must have."""


class NoRoom(StokerError):
    """All files of the cache are in use, and there is no room for another one."""


@dataclass(frozen=True)
class Wanted:
    """A file by its content."""

    sha256: str
    bytes: int
    needed: bool = False
    """Whether it is fetched although there is no room for it: nothing works without it."""


class HeldFile:
    """A file of the cache that is open for reading. It is not evicted until this object is gone."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def close(self) -> None:
        """Close it. The time of its last use is now."""
        if self.handle >= 0:
            with suppress(OSError):
                os.utime(self.handle)
            os.close(self.handle)
            self.handle = -1

    def __del__(self) -> None:
        self.close()


class FileCache:
    """A folder of files by their hashes, of `limit_bytes` in all."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._files = folder / "files"
        try:
            with self._locked():
                self._remove_parts()
        except OSError as error:
            raise BadRequest(
                f"the cache {folder} cannot be used ({error.strerror or error}): name a folder on "
                "a local disk in STOKER_CACHE"
            ) from error

    def path_of(self, wanted: Wanted) -> Path:
        """The path of a file, which is there while it is held."""
        return self._files / wanted.sha256

    def held(self, wanted: Wanted) -> HeldFile | None:
        """A file of the cache, held open; None where it is not there."""
        path = self.path_of(wanted)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        held = HeldFile(handle)
        fcntl.flock(handle, fcntl.LOCK_SH)
        # Between opening and locking it may have been evicted, or replaced.
        status = os.fstat(handle)
        if status.st_nlink == 0 or status.st_size != wanted.bytes:
            if status.st_nlink and status.st_size != wanted.bytes:
                self.drop(wanted)
            return None
        with suppress(OSError):
            os.utime(handle)
        return held

    def fetch(
        self, wanted: Wanted, download: Download, patience: Patience | None = None
    ) -> HeldFile:
        """A file, held open, downloaded unless it is there. Raises NoRoom where everything else is
        in use, WrongHash, and what `download` raises."""
        patience = patience or Patience()
        while True:
            if held := self.held(wanted):
                return held
            part = self._part(wanted)
            if part is not None:
                break
            patience.require_going()  # another process fetches it
            self._require_progress(wanted)
            time.sleep(POLL_S)
        path = self._part_path(wanted)
        try:
            if held := self.held(wanted):  # it was finished in the last moment
                return held
            for attempt in range(1, TRIES + 1):
                if (digest := receive(part, download)) == wanted.sha256:
                    break
                if attempt == TRIES:
                    raise WrongHash(f"its hash is {digest[:16]}..., not {wanted.sha256[:16]}...")
            reach("cache:received")
            os.fsync(part)
            # Where the folder was deleted, the file is read as long as it is held, and has no name.
            with suppress(FileNotFoundError):
                if is_at(part, path):
                    path.replace(self.path_of(wanted))
            reach("cache:named")
            held, part = HeldFile(part), -1
            fcntl.flock(held.handle, fcntl.LOCK_SH)
            return held
        finally:
            if part is not None and part >= 0:
                with suppress(OSError):
                    if is_at(part, path):
                        path.unlink()
                os.close(part)

    def _part_path(self, wanted: Wanted) -> Path:
        return self._files / f"{wanted.sha256}{PART}"

    def _require_progress(self, wanted: Wanted) -> None:
        """Raise NoRoom where the process that fetches a file stands still."""
        with suppress(FileNotFoundError):
            still_s = time.time() - self._part_path(wanted).stat().st_mtime
            if still_s > STILL_S:
                raise NoRoom(
                    f"another process fetches a file of the cache {self.folder} and has not gone "
                    f"on for {still_s:.0f} s: end that process"
                )

    def _remove_parts(self) -> None:
        """Remove what killed processes have left: files that no process fetches."""
        for _, _, name in list(self._entries()):
            if name.endswith(PART):
                self._evict(name)

    def _part(self, wanted: Wanted) -> int | None:
        """A file with room for all bytes, open and locked; None where another process fetches it.
        Raises NoRoom."""
        path = self._part_path(wanted)
        with self._locked():
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return None
            try:
                if not is_at(handle, path):  # another process has just finished it
                    os.close(handle)
                    return None
                os.ftruncate(handle, 0)
                self._make_room(wanted)
                self._allocate(handle, wanted.bytes)
            except BaseException:
                path.unlink(missing_ok=True)
                os.close(handle)
                raise
        return handle

    def _make_room(self, wanted: Wanted) -> None:
        """Remove files that no process has open, the longest unused first, until there is room for
        another one. Raises NoRoom."""
        files = sorted(self._entries())
        total = sum(size for _, size, _ in files)
        for _, size, name in files:
            if total + wanted.bytes <= self.limit_bytes:
                return
            if self._evict(name):
                total -= size
        if total + wanted.bytes > self.limit_bytes and not wanted.needed:
            raise NoRoom(
                f"the cache {self.folder} may have {size_text(self.limit_bytes)}, and "
                f"{size_text(total)} of it are in use: allow it more"
            )

    def _allocate(self, handle: int, needed_bytes: int) -> None:
        """Reserve bytes on the disk. A full disk has less room than the cache may have: then files
        that are not in use go. Raises NoRoom."""
        files = iter(sorted(self._entries()))
        while True:
            try:
                reach("cache:allocate")
                return allocate(handle, needed_bytes)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if not any(self._evict(name) for _, _, name in files):
                    raise NoRoom(
                        f"the disk of the cache {self.folder} is full: free some of it, or name a "
                        "folder on another disk in STOKER_CACHE"
                    ) from error

    def _entries(self) -> Iterator[tuple[float, int, str]]:
        """Time of the last use, bytes and name of each file."""
        with os.scandir(self._files) as entries:
            for entry in entries:
                if NAME.fullmatch(entry.name.removesuffix(PART)):
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield status.st_mtime, status.st_size, entry.name

    def _evict(self, name: str) -> bool:
        """Remove a file, unless a process has it open."""
        path = self._files / name
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def drop(self, wanted: Wanted) -> None:
        """Remove a file that turned out to be damaged; processes that read it keep their copy."""
        with suppress(OSError):
            self.path_of(wanted).unlink()

    @property
    def bytes_used(self) -> int:
        return sum(size for _, size, _ in self._entries())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time makes room. The folder is made again where it was deleted."""
        with suppress(FileExistsError):
            self._files.mkdir(parents=True, mode=0o700)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def is_at(handle: int, path: Path) -> bool:
    """Whether a path leads to the file of a handle."""
    with suppress(OSError):
        return os.path.samestat(os.fstat(handle), path.stat())
    return False


def receive(handle: int, download: Download) -> str:
    """Write what is downloaded to a file; returns the hash of it."""
    digest, done = hashlib.sha256(), 0

    def write(chunk: memoryview) -> None:
        nonlocal done
        view, at = chunk.cast("B"), 0
        while at < len(view):
            at += os.pwrite(handle, view[at:], done + at)
        digest.update(view)
        done += len(view)
        reach("cache:chunk")

    download(write)
    os.ftruncate(handle, done)
    return digest.hexdigest()


def allocate(handle: int, size: int) -> None:
    """Reserve the bytes of a file, where the file system can: a full disk is found before the
    download. Raises OSError."""
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        os.ftruncate(handle, size)
