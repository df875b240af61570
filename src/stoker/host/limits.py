"""How many cores and how much memory this process may use.

Invariants: the affinity and the control groups of the process decide, never the machine's totals
alone. A limit that cannot be read counts as no limit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from stoker.host import proc
from stoker.text import size

CGROUPS, OWN_CGROUP = "/sys/fs/cgroup", "/proc/self/cgroup"
GB = 10**9
MEMORY_SHARE = 0.5
"""Share of the usable memory that loading or packing may take without `--max-ram`."""
UNLIMITED = 1 << 50
"""More bytes than any machine has."""
MEMORY_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Of control groups version 2, then 1: the tree of the controller, its limit, its usage, and the
field of memory.stat with the bytes that the kernel frees first."""


class MemoryLimit(NamedTuple):
    """The memory limit of one control group, and where its usage is written."""

    bytes: int
    folder: Path
    usage_file: str
    reclaimable_field: str


def usable_cores() -> int:
    """Cores this process may use, by its affinity and the CPU quota of its control groups."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, cgroup_cores()))


def cgroup_cores(root: str = CGROUPS, own: str = OWN_CGROUP) -> int:
    """Whole cores of the smallest CPU quota on this process; 1 << 20 where there is no quota."""
    cores = [1 << 20]
    quota_files = (("", ("cpu.max",)), ("cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")))
    for tree, names in quota_files:  # control groups version 2, then 1
        for folder in cgroups(root, own, tree):
            with suppress(OSError, ValueError):  # a quota of "max" is no number
                text = " ".join((folder / name).read_text() for name in names)
                quota, period = map(int, text.split())
                if min(quota, period) > 0:
                    cores.append(max(1, int(quota / period + 0.5)))
    return min(cores)


def usable_memory(
    root: str = CGROUPS, own: str = OWN_CGROUP, meminfo: str = "/proc/meminfo"
) -> int:
    """Bytes this process may use, by machine and control groups; UNLIMITED if unreadable."""
    sizes = [UNLIMITED, *(limit.bytes for limit in memory_limits(root, own))]
    with suppress(OSError):
        sizes.append(total_memory(Path(meminfo).read_text()))
    return min(sizes)


def require_memory(needed: int) -> None:
    """Raise OSError where so many bytes are more than all memory that this process may use."""
    if needed > (most := usable_memory()):
        raise OSError(
            errno.ENOMEM, f"it has {size(needed)}, and this machine {size(most)} of memory"
        )


def total_memory(meminfo: str) -> int:
    """Bytes of the machine's memory, from the text of /proc/meminfo; UNLIMITED if it has none."""
    kib = proc.fields(meminfo).get("MemTotal")
    return UNLIMITED if kib is None else kib * 1024


def resident_memory() -> int:
    """Bytes of memory that this process has now; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def memory_limits(root: str, own: str) -> Iterator[MemoryLimit]:
    """Every memory limit on this process. Version 1 writes a huge number where there is none."""
    for tree, limit_file, usage_file, reclaimable_field in MEMORY_FILES:
        for folder in cgroups(root, own, tree):
            with suppress(OSError):
                limit = proc.number((folder / limit_file).read_text().strip())
                if limit is not None:  # "max" is no number
                    yield MemoryLimit(limit, folder, usage_file, reclaimable_field)


def allowed_memory(max_ram_gb: float, memory: int, ranks_here: int = 1) -> int:
    """Bytes that loading or packing may take: a rank's part of `--max-ram` or half the memory."""
    return int((max_ram_gb * GB if max_ram_gb else MEMORY_SHARE * memory) / ranks_here)


def cgroups(root: str, own: str, controller: str = "") -> list[Path]:
    """Folders of this process's control groups, from its own up to the root: each may set a limit.
    Without a controller, those of version 2; with one, of the tree that version 1 keeps for it."""
    own_path = ""
    with suppress(OSError):
        for line in Path(own).read_text().splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controller in controllers.split(","):
                own_path = path.strip("/")
    parts = [part for part in own_path.split("/") if part not in ("", "..")]
    return [Path(root, controller, *parts[:depth]) for depth in range(len(parts), -1, -1)]
