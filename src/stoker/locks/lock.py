"""One process at a time in a folder: by the kernel's lock of a file, and where the file system has
no such locks, by leases.

    FOLDER/.lock/000001     see locks/lease.py; only where locks of files do not work

Invariants: where locks of files work, they alone decide. A holder that stood still for long takes
the next lease; where another process was quicker it has lost the folder, and writes nothing there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from stoker.commit import UNABLE
from stoker.errors import StokerError
from stoker.host.plain_file import open_plain
from stoker.locks import lease as rules
from stoker.locks.files import DiskFiles, SystemClock
from stoker.locks.lease import Holder, Lease, Leases

LEASES = ".lock"
WITHOUT_LOCKS = (*UNABLE, errno.ENOLCK)
"""The errors of a file system that has no locks of files."""
POLL_S = 0.1


class TakenOver(StokerError):
    """Another process has taken the folder, while this one stood still."""


class FolderLeases(Leases):
    """The leases of a folder, which is the root of the files."""

    def folder(self, cell: str) -> str:
        return cell


def leases_of(folder: Path) -> FolderLeases:
    return FolderLeases(DiskFiles(folder), SystemClock(), Holder.this_process())


@dataclass
class FolderLock:
    """The lock of a folder, by a handle of it or of a file in it, which the caller closes."""

    folder: Path
    handle: int
    _leases: FolderLeases | None = None
    _lease: Lease | None = None
    _first: tuple[int, int] | None = None
    """The lease and the beat of another holder that were seen first."""
    _over: threading.Event = field(default_factory=threading.Event)
    _mutex: threading.Lock = field(default_factory=threading.Lock)

    def take(self, *, waits: bool = False) -> bool:
        """Take the lock if it is free; whether this process has it now. With `waits`, a lock of the
        kernel is waited for. Raises OSError."""
        if self._leases is None:
            try:
                fcntl.flock(self.handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
                return True
            except BlockingIOError:
                return False
            except OSError as error:
                if error.errno not in WITHOUT_LOCKS:
                    raise
            self._leases = leases_of(self.folder)
        try:
            self._lease = self._leases.take(LEASES)
        except OSError as error:
            if error.errno in UNABLE:
                reason = "the disk has neither locks of files nor links"
                raise OSError(error.errno, reason) from error
            raise
        if self._lease is not None and self._is_newest(self._lease):
            threading.Thread(target=self._keep, name="stoker-lock", daemon=True).start()
        else:
            self._lease = None
        return self._lease is not None

    def _is_newest(self, lease: Lease) -> bool:
        """Whether no later lease was there before this one, which was created late then: those
        before the last two are removed here."""
        assert self._leases
        newest, names = self._leases.newest(LEASES)
        for name in names:
            if name[:6].isdecimal() and int(name[:6]) < newest - 1:
                with suppress(OSError):
                    (self.folder / LEASES / name).unlink()
        return lease.number == newest

    @property
    def is_silent(self) -> bool:
        """Whether the holder of the lease has not beaten since `take` was tried first."""
        if self._leases is None:
            return False
        sign = self._leases.seen(LEASES)
        self._first = self._first or sign
        return sign == self._first

    def wait(self, is_over: Callable[[], bool] | None = None) -> bool:
        """Take the lock as soon as it is free; False where `is_over` before. Raises OSError."""
        while not self.take(waits=is_over is None):
            if is_over and is_over():
                return False
            time.sleep(POLL_S)
        return True

    def _keep(self) -> None:
        while not self._over.wait(rules.BEATS_S / 2):
            self.lost()

    def lost(self) -> str:
        """Why this process may not write in the folder; empty while it may, or has no lease."""
        with self._mutex:
            if not self._leases or not self._lease or self._leases.keep(self._lease):
                return ""
        return (
            f"{self.folder}: another process has taken it over while this one stood still: "
            "what this one has not saved does not count"
        )

    def require(self) -> None:
        """Raise TakenOver where another process has taken the folder."""
        if reason := self.lost():
            raise TakenOver(reason)

    def release(self) -> None:
        """Give the lease up, so that another process can have it at once."""
        self._over.set()
        with self._mutex:
            lease, self._lease = self._lease, None
            with suppress(OSError):  # it then ends by itself
                if self._leases and lease and self._leases.keep(lease):
                    self._leases.end(lease, {})


def is_held(folder: Path, name: str) -> bool:
    """Whether a process of this machine, or of any by a lease, holds the lock of a folder, which is
    a file of that name."""
    try:
        with open_plain(folder / name) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, ValueError) as error:
        with suppress(OSError):
            return getattr(error, "errno", 0) in WITHOUT_LOCKS and is_beating(folder)
    return False


def is_beating(folder: Path) -> bool:
    """Whether the newest lease has not ended, and its file has changed lately: by the clocks of
    this machine and of the file system, so it decides nothing."""
    leases = leases_of(folder)
    number, names = leases.newest(LEASES)
    if not number or f"{number:06d}.end" in names or leases.holder_is_dead(LEASES, number):
        return False
    newest = f"{number:06d}.beat" if f"{number:06d}.beat" in names else f"{number:06d}"
    return time.time() - (folder / LEASES / newest).stat().st_mtime < rules.EXPIRES_S


@contextmanager
def locked(folder: Path, path: Path | None = None) -> Iterator[FolderLock]:
    """Hold the lock of a folder, by this file in it, or by the folder itself; others wait. Raises
    OSError."""
    flags = os.O_RDONLY if path is None else os.O_RDWR | os.O_CREAT
    lock = FolderLock(folder, os.open(path or folder, flags | os.O_CLOEXEC, 0o644))
    try:
        lock.wait()
        yield lock
    finally:
        lock.release()
        os.close(lock.handle)
