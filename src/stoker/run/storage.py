"""Whether a folder can be written, is still the one that was opened, and who trains in it.

Invariants: nothing is left behind: neither a test file nor a folder that was made for it. A folder
that is held open keeps its inode, so another one in its place is told apart.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from stoker.commit import open_at_end
from stoker.errors import BadRequest
from stoker.locks.lease import EXPIRES_S
from stoker.locks.lock import FolderLock
from stoker.text import say, shown

LOCK = "lock"
"""The file of a run that is locked by the process that trains it."""
FULL = (errno.ENOSPC, errno.EDQUOT)
OTHER_RUN = "or name another --run"
SENTENCES = {
    errno.EDQUOT: f"the quota is used up: free some space, {OTHER_RUN}",
    errno.EROFS: f"the disk is mounted read-only: mount it for writing, {OTHER_RUN}",
    errno.ENOTDIR: f"it is not a folder: move it away, {OTHER_RUN}",
    errno.EEXIST: f"it is not a folder: move it away, {OTHER_RUN}",
}


class RunInUse(BadRequest):
    """Another process trains this run."""


def refused(folder: Path, error: OSError) -> BadRequest:
    """The error for a folder that cannot be written: which one, why, and what to do."""
    number = error.errno or 0
    return BadRequest(f"cannot write in {folder}: {SENTENCES.get(number) or why(folder, error)}")


def why(folder: Path, error: OSError) -> str:
    """Why a folder cannot be written, and what to do, for reasons with a figure or a name."""
    with suppress(OSError):
        if error.errno == errno.ENOSPC:
            disk = os.statvfs(folder)
            if disk.f_files and not disk.f_favail:
                return f"the disk has no inodes left: remove some files, {OTHER_RUN}"
            free_mb = disk.f_bavail * disk.f_frsize / 1e6
            return f"the disk is full ({free_mb:,.1f} MB free): free some space, {OTHER_RUN}"
        if error.errno in (errno.EACCES, errno.EPERM):
            owner, user = folder.stat().st_uid, os.geteuid()
            return (
                f"no permission (it belongs to user {owner}, this is user {user}): "
                f"change its owner or its rights, {OTHER_RUN}"
            )
    return f"{error.strerror or error}: check the disk, {OTHER_RUN}"


def require_writable(folder: Path) -> None:
    """Write a file in a folder, which is made for that if it is missing, and remove both again.
    Raises BadRequest where that fails."""
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    probe = folder / f".probe.{os.getpid()}"

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(4096))
        finally:
            probe.unlink(missing_ok=True)

    try:
        try:
            write()
        except FileNotFoundError:  # another rank has removed the folder, after a try of its own
            write()
    except OSError as error:
        existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
        raise refused(existing, error) from error
    finally:
        for path in missing:
            with suppress(OSError):
                path.rmdir()


class Place:
    """The directory behind a path, held open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def hold(self) -> None:
        """Open the directory; a mount that cannot open directories is not checked."""
        self.release()
        with suppress(OSError):
            self._handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.release()

    @property
    def is_held(self) -> bool:
        """Whether the path leads to the directory that was opened; True if none was."""
        if self._handle is None:
            return True
        try:
            return os.path.samestat(os.fstat(self._handle), self.path.stat())
        except FileNotFoundError:
            return False
        except OSError as error:
            # A disk that does not answer says nothing; a handle without its directory does.
            return error.errno not in (errno.ESTALE, errno.ENOTDIR)

    def lost(self) -> str:
        """The sentence for a directory that is no longer there, with its new path if known."""
        where = ""
        with suppress(OSError):
            where = str(Path(f"/proc/self/fd/{self._handle}").readlink())
        message = f"{self.path} is no longer the directory of this run: it was "
        if where and Path(where).is_dir():
            return (
                f"{message}moved or replaced; the run is in {shown(where)}: go on there with "
                f"--run {shown(where)}"
            )
        return f"{message}removed: put it back from a copy to go on, or start again"


class RunLock:
    """The lock of a run."""

    def __init__(self, folder: Path, patience_s: float) -> None:
        """Take it. Raises RunInUse, which names another holder, where one holds it for so long;
        BadRequest where the disk refuses."""
        path = folder / LOCK
        if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
            kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "special file"
            raise BadRequest(f"{path} is a {kind}, not a plain file: remove it")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open_at_end(path)
        except OSError as error:
            raise refused(folder, error) from error
        self._lock = FolderLock(folder, self._file.fileno())
        try:
            self._wait(patience_s)
            self._file.truncate(0)
            self._file.seek(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        except OSError as error:
            self.release()
            raise refused(folder, error) from error
        except BaseException:
            self.release()
            raise
        self.lost, self.require = self._lock.lost, self._lock.require

    def _wait(self, patience_s: float) -> None:
        deadline, has_said = time.monotonic() + patience_s, False

        def is_over() -> bool:
            nonlocal has_said
            is_silent = self._lock.is_silent
            if time.monotonic() <= deadline:
                return False
            if is_silent and patience_s and not has_said:
                has_said = True
                say(
                    f"waiting for {self._holder()}, which holds {shown(str(self._lock.folder))} "
                    f"and has given no sign for {patience_s:.0f} s: after {EXPIRES_S:.0f} s "
                    "without one this command goes on"
                )
            return not (is_silent and patience_s)

        if not self._lock.wait(is_over):
            raise RunInUse(
                f"{self._lock.folder} is being trained by {self._holder()}: "
                "stop that process first, or name another --run"
            )

    def _holder(self) -> str:
        self._file.seek(0)
        return shown(self._file.read().decode(errors="replace").strip())

    def release(self) -> None:
        self._lock.release()
        self._file.close()
