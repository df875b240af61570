"""Whether a folder can be written, and whether it is still the one that was opened.

Invariants: nothing is left behind: neither a test file nor a folder that was made for it. A folder
that is held open keeps its inode, so another one in its place is told apart.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from stoker.errors import BadRequest
from stoker.text import shown

FULL = (errno.ENOSPC, errno.EDQUOT)
OTHER_RUN = "or name another --run"
SENTENCES = {
    errno.EDQUOT: f"the quota is used up: free some space, {OTHER_RUN}",
    errno.EROFS: f"the disk is mounted read-only: mount it for writing, {OTHER_RUN}",
    errno.ENOTDIR: f"it is not a folder: move it away, {OTHER_RUN}",
    errno.EEXIST: f"it is not a folder: move it away, {OTHER_RUN}",
}


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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(bytes(4096))
        finally:
            probe.unlink(missing_ok=True)
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
