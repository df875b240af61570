"""Before a run starts or resumes: can its next checkpoint be written? Needs no torch.

Invariant: a run that cannot be saved is refused before its first step, and nothing is left behind.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from pathlib import Path

from stoker.commit import UNABLE
from stoker.errors import BadRequest, NewerFormat
from stoker.run.storage import refused, require_writable
from stoker.survive.manifest import manifest_of, names_in, pointer

LEAST_BYTES = 1 << 16
"""Space for events, where old checkpoints make room for the next one."""


def require_storage(run_path: Path) -> None:
    """Raise BadRequest where a run directory cannot be written, or where the disk has no space for
    one more checkpoint like the newest."""
    folder = run_path / "checkpoints"
    size, freeable = checkpoint_sizes(folder)
    if size:
        require_space(folder, max(size - freeable, LEAST_BYTES), "the next checkpoint")
    for path in (run_path, folder, run_path / "attempts"):
        if path == run_path or os.path.lexists(path):
            require_writable(path)


def checkpoint_sizes(folder: Path) -> tuple[int, int]:
    """Bytes of the newest checkpoint, and those that a save on a full disk may free for the next:
    of all older ones but the best. Zeros where there is no checkpoint."""
    sizes: dict[str, int] = {}
    try:
        for name in names_in(folder):
            if manifest := manifest_of(folder / name):
                sizes[name] = sum(facts["bytes"] for facts in manifest["files"].values())
    except (OSError, NewerFormat):
        pass  # what cannot be read is reported by those who read it
    best = pointer(folder.parent / "best")
    newest = next(iter(sizes), "")
    linked = folder.is_symlink()
    older = [size for name, size in sizes.items() if name not in (newest, best) and not linked]
    return sizes.get(newest, 0), sum(older)


def require_space(folder: Path, needed: int, what: str = "the checkpoints of this run") -> None:
    """Raise BadRequest where the disk, or the user's quota, has less than `needed` bytes left, or
    where no file can be made."""
    probe = folder / ".room"
    try:
        free = shutil.disk_usage(folder).free
        probe.unlink(missing_ok=True)  # left by a kill, or a link
        try:
            number = reserve(probe, needed) if free >= needed else errno.ENOSPC
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise refused(folder, error) from error
    if number in (errno.ENOSPC, errno.EDQUOT):
        quota = "the quota leaves less"
        digits = 0 if needed >= 1e6 else 2
        left = quota if number == errno.EDQUOT else f"{free / 1e6:,.{digits}f} MB are free"
        verb = "need" if what.endswith("run") else "needs"
        raise BadRequest(
            f"{what} {verb} {needed / 1e6:,.{digits}f} MB in {folder}, and {left}: "
            "free some space, lower --keep-checkpoints, or name another --run"
        )


def reserve(path: Path, size: int) -> int:
    """Reserve bytes by fallocate, which quotas count; the error number, 0 also if unsupported."""
    if sys.platform != "linux":
        return 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.fallocate(file, 0, ctypes.c_int64(0), ctypes.c_int64(size))
        number = ctypes.get_errno() if failed else 0
    finally:
        os.close(file)
    return 0 if number in UNABLE else number
