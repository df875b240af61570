"""One look at the machine and this process, and what two of them say about the time between.

Invariants: what is absent is left out, never zero, and asked for once only. Files of the kernel
are held open, because each call that may wait gives the interpreter lock away, and where a thread
hogs the lock it takes milliseconds to come back. Differences are pure functions on readings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from stoker.host import proc
from stoker.host.limits import CGROUPS, OWN_CGROUP, cgroups

MOST_BYTES = 1 << 16
PRESSURES = ("cpu", "io", "memory")
MEMORY_FILES = (
    ("", "memory.max", "memory.current", "inactive_file"),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Tree of a controller, its limit, its use, and what of that the kernel drops before it complains:
in version 2 of control groups, then in version 1."""


@dataclass(frozen=True)
class Reading:
    """What was seen at one moment."""

    at_s: float
    counts: Mapping[str, float] = field(default_factory=dict)
    """What only grows: its difference tells."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """What goes up and down, in bytes."""
    network: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    network_at_s: float = 0.0


def kernel_text(path: Path | str) -> str:
    """The whole text of a kernel file; empty where it cannot be read."""
    with suppress(OSError):
        return Path(path).read_text("utf-8", "replace")
    return ""


class KernelFile:
    """A text that the kernel writes anew whenever it is read; empty for ever once it failed."""

    def __init__(self, path: Path | str) -> None:
        self._handle: int | None = None
        with suppress(OSError):
            self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def text(self) -> str:
        if self._handle is None:
            return ""
        try:
            return os.pread(self._handle, MOST_BYTES, 0).decode("utf-8", "replace")
        except OSError:
            self.close()
            return ""

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


class Machine:
    """The files that are looked at, found once."""

    def __init__(
        self, proc_root: str = "/proc", cgroup_root: str = CGROUPS, own: str = OWN_CGROUP
    ) -> None:
        root = Path(proc_root)
        self._files = {
            "stat": KernelFile(root / "stat"),
            "meminfo": KernelFile(root / "meminfo"),
            "statm": KernelFile(root / "self/statm"),
            "io": KernelFile(root / "self/io"),
            "net": KernelFile(root / "net/dev"),
            # The thread that a process begins with has the process's own number.
            "main": KernelFile(root / f"self/task/{os.getpid()}/schedstat"),
            **{f"pressure {name}": KernelFile(root / "pressure" / name) for name in PRESSURES},
        }
        self._quotas = [
            KernelFile(folder / "cpu.stat")
            for tree in ("", "cpu")
            for folder in cgroups(cgroup_root, own, tree)
            if (folder / "cpu.stat").is_file()
        ]
        self._limit, self._limited, self._droppable = self._memory_limit(cgroup_root, own)

    def _memory_limit(
        self, root: str, own: str
    ) -> tuple[int | None, tuple[KernelFile, KernelFile] | None, str]:
        """The tightest limit on this process, where its use is written, and the name there of what
        may be dropped. A limit above the machine's memory is none."""
        total = proc.fields(self._files["meminfo"].text()).get("MemTotal", 1 << 40) * 1024
        found = []
        for tree, limit_name, use_name, droppable in MEMORY_FILES:
            for folder in cgroups(root, own, tree):
                with suppress(OSError):
                    limit = proc.single((folder / limit_name).read_text())
                    if limit is not None and limit < total:
                        found.append((limit, folder, use_name, droppable))
        if not found:
            return None, None, ""
        limit, folder, use_name, droppable = min(found, key=lambda each: each[0])
        return limit, (KernelFile(folder / use_name), KernelFile(folder / "memory.stat")), droppable

    def read(self) -> Reading:
        """Look at everything once, from one and the same thread."""
        text = {name: file.text() for name, file in self._files.items() if name != "net"}
        network, network_at_s = proc.interface_bytes(self._files["net"].text()), time.monotonic()
        times = os.times()
        counts: dict[str, float] = {
            "own_user_s": times.user,
            "own_system_s": times.system,
            "sampler_s": time.thread_time(),
        }
        counts |= {f"ticks_{k}": v for k, v in proc.machine_ticks(text["stat"]).items()}
        for quota in self._quotas:
            # Usually one group has a quota: the others add nothing.
            for name, value in proc.throttled(quota.text()).items():
                counts[name] = counts.get(name, 0) + value
        for name in PRESSURES:
            waited = proc.pressure_s(text[f"pressure {name}"])
            if waited is not None:
                counts[f"pressure_{name}_s"] = waited
        main = proc.schedule_s(text["main"])
        if main is not None:
            counts["main_cpu_s"], counts["main_delay_s"] = main
        own_io = proc.fields(text["io"])
        counts |= {k: own_io[k] for k in ("read_bytes", "write_bytes") if k in own_io}
        return Reading(time.monotonic(), counts, self._levels(text), network, network_at_s)

    def _levels(self, text: Mapping[str, str]) -> dict[str, float]:
        levels: dict[str, float] = {}
        pages = [proc.number(word) for word in text["statm"].split()[:2]]
        if len(pages) == 2 and pages[1] is not None:
            levels["own_bytes"] = pages[1] * os.sysconf("SC_PAGE_SIZE")
        available = proc.fields(text["meminfo"]).get("MemAvailable")
        if available is not None:
            levels["available_bytes"] = available * 1024
        if self._limit is not None and self._limited is not None:
            levels["limit_bytes"] = self._limit
            used = proc.single(self._limited[0].text())
            if used is not None:
                # The page cache fills every limit and hurts nobody.
                dropped = proc.fields(self._limited[1].text()).get(self._droppable, 0)
                levels["used_bytes"] = max(0, used - dropped)
        return levels

    def close(self) -> None:
        for file in (*self._files.values(), *self._quotas, *(self._limited or ())):
            file.close()


def between(readings: Sequence[Reading]) -> dict[str, Any]:
    """What happened from the first reading to the last, as plain data."""
    if len(readings) < 2 or readings[-1].at_s <= readings[0].at_s:
        return {"seconds": 0.0}
    first, last = readings[0], readings[-1]
    seconds = last.at_s - first.at_s
    grown = growth(first.counts, last.counts)
    said: dict[str, Any] = {
        "seconds": round(seconds, 6),
        "cpu": cpu(grown, seconds),
        "pressure": {
            name: share(grown[f"pressure_{name}_s"], seconds)
            for name in PRESSURES
            if f"pressure_{name}_s" in grown
        },
        "main": {
            name: share(grown[f"main_{name}_s"], seconds)
            for name in ("cpu", "delay")
            if f"main_{name}_s" in grown
        },
        "memory": memory([reading.levels for reading in readings[1:]]),
        "disk": {k: int(grown[k]) for k in ("read_bytes", "write_bytes") if k in grown},
    }
    said = {name: value for name, value in said.items() if value != {}}
    if last.network:
        said["network"] = network(readings)
    return said


def growth(first: Mapping[str, float], last: Mapping[str, float]) -> dict[str, float]:
    """By how much each count grew. One that fell was begun anew: nobody knows by how much."""
    both = ((name, last[name] - first[name]) for name in last if name in first)
    return {name: by for name, by in both if by >= 0}


def share(part: float, whole: float) -> float:
    return round(part / whole, 4)


def cpu(grown: Mapping[str, float], seconds: float) -> dict[str, float]:
    said = {
        name: round(grown[name], 4)
        for name in ("own_user_s", "own_system_s", "sampler_s", "throttled_s", "throttled_times")
        if name in grown
    }
    own = [grown[name] for name in ("own_user_s", "own_system_s") if name in grown]
    if own:
        said["own_cores"] = share(sum(own), seconds)
    for name in ("busy", "iowait", "steal"):
        if grown.get("ticks_all") and f"ticks_{name}" in grown:
            said[name] = share(grown[f"ticks_{name}"], grown["ticks_all"])
    return said


def memory(levels: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """Each level's worst moment: the most in use, the least available."""
    said = {}
    for name in ("own_bytes", "available_bytes", "limit_bytes", "used_bytes"):
        seen = [level[name] for level in levels if name in level]
        if seen:
            said[name] = int(min(seen) if name == "available_bytes" else max(seen))
    return said


def network(readings: Sequence[Reading]) -> dict[str, dict[str, float]]:
    """Totals of each interface that carried anything, and its fastest interval."""
    said = {}
    for name, (received, sent) in readings[-1].network.items():
        before = readings[0].network.get(name)
        begun_anew = before is None or received < before[0] or sent < before[1]
        if before is None or begun_anew or (received, sent) == before:
            continue
        peaks = [0.0, 0.0]
        for one, two in pairwise(readings):
            seconds = two.network_at_s - one.network_at_s
            if seconds > 0 and name in one.network and name in two.network:
                for way in (0, 1):
                    rate = (two.network[name][way] - one.network[name][way]) / seconds
                    peaks[way] = max(peaks[way], rate)
        said[name] = {
            "rx_bytes": received - before[0],
            "tx_bytes": sent - before[1],
            "rx_peak_bytes_per_s": round(peaks[0], 1),
            "tx_peak_bytes_per_s": round(peaks[1], 1),
        }
    return said
