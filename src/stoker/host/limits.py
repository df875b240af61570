"""How many cores and how much memory this process may use.

Invariants: affinity and the control groups of the process decide, never the machine's own totals. A
limit that cannot be read is no limit.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CGROUPS, OWN_CGROUP = "/sys/fs/cgroup", "/proc/self/cgroup"
GB = 10**9
MEMORY_SHARE = 0.5
"""Share of the usable memory that loading or packing may take without `--max-ram`."""


def usable_cores() -> int:
    """Cores this process may use: affinity and the cgroup's quota, never the machine's count."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, cgroup_cores()))


def cgroup_cores(root: str = CGROUPS, own: str = OWN_CGROUP) -> int:
    """Whole cores of the smallest CPU quota on this process; very many where there is none."""
    quotas: list[tuple[int, int]] = []
    for folder in cgroups(root, own):
        with suppress(OSError, ValueError):  # "max" is no number
            quota, period = (folder / "cpu.max").read_text().split()
            quotas.append((int(quota), int(period)))
    for folder in cgroups(root, own, "cpu"):
        with suppress(OSError, ValueError):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota_us, period_us = (int((folder / name).read_text()) for name in names)
            quotas.append((quota_us, period_us))
    cores = [
        max(1, int(quota / period + 0.5)) for quota, period in quotas if min(quota, period) > 0
    ]
    return min(cores, default=1 << 20)


def usable_memory(
    root: str = CGROUPS, own: str = OWN_CGROUP, machine: str = "/proc/meminfo"
) -> int:
    """Bytes of memory this process may use: the machine's, or its cgroup's limit."""
    found = [1 << 50]
    for folder in cgroups(root, own):
        with suppress(OSError, ValueError):
            found.append(int((folder / "memory.max").read_text()))  # "max" is no number
    for folder in cgroups(root, own, "memory"):
        with suppress(OSError, ValueError):  # where there is no limit: more than any machine has
            found.append(int((folder / "memory.limit_in_bytes").read_text()))
    with suppress(OSError, ValueError, StopIteration):
        lines = Path(machine).read_text().splitlines()
        total = next(line for line in lines if line.startswith("MemTotal:"))
        found.append(int(total.split()[1]) * 1024)
    return min(found)


def allowed_memory(max_ram_gb: float, memory: int, ranks_here: int = 1) -> int:
    """Bytes that loading or packing may take: an equal part for each rank of this host, of
    `--max-ram`, or of half of the usable memory where `--max-ram` is 0."""
    return int((max_ram_gb * GB if max_ram_gb else MEMORY_SHARE * memory) / ranks_here)


def cgroups(root: str, own: str, controller: str = "") -> list[Path]:
    """The control groups of this process, from its own up to the root: each may set a limit. Those
    of the one tree of version 2, or of the tree that a controller has for itself in version 1."""
    inside = ""
    with suppress(OSError):
        for line in Path(own).read_text().splitlines():
            _, _, place = line.partition(":")
            names, _, path = place.partition(":")
            if controller in names.split(","):
                inside = path.strip("/")
    parts = [part for part in inside.split("/") if part not in ("", "..")]
    return [Path(root, controller, *parts[:depth]) for depth in range(len(parts), -1, -1)]
