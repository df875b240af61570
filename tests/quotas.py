"""A control group with a CPU quota, for tests: version 2 or 1, whichever this machine has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


@dataclass(frozen=True)
class QuotaGroup:
    """A control group of our own."""

    folder: Path

    def set(self, cores: float | None) -> None:
        """Limit the group to so many cores; None: no limit."""
        quota = None if cores is None else round(cores * PERIOD_US)
        new = self.folder / "cpu.max"
        if new.exists():
            new.write_text(f"{'max' if quota is None else quota} {PERIOD_US}")
        else:
            (self.folder / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))

    def add(self, *pids: int) -> None:
        """Move processes, with all their threads, into the group."""
        for pid in pids:
            (self.folder / "cgroup.procs").write_text(str(pid))


def parent_folder() -> Path | None:
    """The group in which quotas can be set; None where there is none."""
    with suppress(OSError):
        if "cpu" in (ROOT / "cgroup.subtree_control").read_text().split():
            return ROOT
    return next((f for f in (ROOT / "cpu", ROOT / "cpu,cpuacct") if f.is_dir()), None)


@contextmanager
def quota_group() -> Iterator[QuotaGroup]:
    """A new group, removed afterwards; raises OSError where none can be made."""
    parent = parent_folder()
    if parent is None:
        raise OSError("this machine has no CPU controller")
    folder = parent / f"stoker-test-{os.getpid()}"
    folder.mkdir()
    try:
        yield QuotaGroup(folder)
    finally:
        folder.rmdir()


def missing_quota() -> str | None:
    """Why no quota can be set here; None if one can."""
    try:
        with quota_group() as group:
            group.set(0.5)
    except OSError as error:
        return f"no CPU quota can be set here: {error}"
    return None
