"""Readings of the machine and this process, and summaries of what happened between them.

Invariants: a value that the kernel does not give is left out, never zero; a file that failed once
is not tried again. Kernel files are held open: each call that may block releases the interpreter
lock, which a busy thread returns milliseconds later. Summaries are pure functions of readings.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from stoker.host import proc
from stoker.host.limits import CGROUPS, OWN_CGROUP, cgroups, memory_limits, total_memory

MOST_BYTES = 1 << 16
PRESSURES = ("cpu", "io", "memory")
Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Reading:
    """The counters and levels of one moment."""

    at_s: float
    counts: Mapping[str, float] = field(default_factory=dict)
    """Counters that only grow: the difference of two readings is what counts."""
    levels: Mapping[str, float] = field(default_factory=dict)
    """Bytes of memory, which go up and down."""
    network: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes received and sent, by interface."""
    network_at_s: float = 0.0


def kernel_text(path: Path | str) -> str:
    """The whole text of a kernel file; empty where it cannot be read."""
    with suppress(OSError):
        return Path(path).read_text("utf-8", "replace")
    return ""


class KernelFile:
    """A file that the kernel writes at each read. Its text is empty once reading it has failed."""

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
    """The kernel files about the machine and this process, opened once."""

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
            # The main thread's id is the process's id.
            "main": KernelFile(root / f"self/task/{os.getpid()}/schedstat"),
            **{f"pressure {name}": KernelFile(root / "pressure" / name) for name in PRESSURES},
        }
        self._quotas = [
            KernelFile(folder / "cpu.stat")
            for tree in ("", "cpu")
            for folder in cgroups(cgroup_root, own, tree)
            if (folder / "cpu.stat").is_file()
        ]
        # A limit above the machine's memory limits nothing.
        total = total_memory(self._files["meminfo"].text())
        limits = [limit for limit in memory_limits(cgroup_root, own) if limit.bytes < total]
        self._limit = min(limits, default=None)
        if self._limit:
            self._files["usage"] = KernelFile(self._limit.folder / self._limit.usage_file)
            self._files["memory.stat"] = KernelFile(self._limit.folder / "memory.stat")

    def read(self) -> Reading:
        """Read every file once, always in the same thread: its CPU time is `sampler_s`."""
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
            # Usually one group has a quota: the others add zero.
            for name, value in proc.throttled(quota.text()).items():
                counts[name] = counts.get(name, 0) + value
        for name in PRESSURES:
            if (waited_s := proc.pressure_s(text[f"pressure {name}"])) is not None:
                counts[f"pressure_{name}_s"] = waited_s
        if main := proc.schedule_s(text["main"]):
            counts["main_cpu_s"], counts["main_delay_s"] = main
        own_io = proc.fields(text["io"])
        counts |= {k: own_io[k] for k in ("read_bytes", "write_bytes") if k in own_io}
        return Reading(time.monotonic(), counts, self._levels(text), network, network_at_s)

    def _levels(self, text: Mapping[str, str]) -> dict[str, float]:
        levels: dict[str, float] = {}
        pages = [proc.number(word) for word in text["statm"].split()[:2]]
        if len(pages) == 2 and pages[1] is not None:
            levels["own_bytes"] = pages[1] * os.sysconf("SC_PAGE_SIZE")
        if (available := proc.fields(text["meminfo"]).get("MemAvailable")) is not None:
            levels["available_bytes"] = available * 1024
        if self._limit:
            levels["limit_bytes"] = self._limit.bytes
            if (used := proc.single(text["usage"])) is not None:
                # The page cache fills every limit; the kernel frees it when memory is needed.
                cached = proc.fields(text["memory.stat"]).get(self._limit.reclaimable_field, 0)
                levels["used_bytes"] = max(0, used - cached)
        return levels

    def close(self) -> None:
        for file in (*self._files.values(), *self._quotas):
            file.close()


def summary(readings: Sequence[Reading]) -> dict[str, Any]:
    """What happened from the first reading to the last, as plain data."""
    if len(readings) < 2 or readings[-1].at_s <= readings[0].at_s:
        return {"seconds": 0.0}
    first, last = readings[0], readings[-1]
    seconds = last.at_s - first.at_s
    used = growth(first.counts, last.counts)
    parts: dict[str, Any] = {
        "seconds": round(seconds, 6),
        "cpu": cpu(used, seconds),
        "pressure": shares("pressure", PRESSURES, used, seconds),
        "main": shares("main", ("cpu", "delay"), used, seconds),
        "memory": memory([reading.levels for reading in readings[1:]]),
        "disk": {k: int(used[k]) for k in ("read_bytes", "write_bytes") if k in used},
    }
    parts = {name: value for name, value in parts.items() if value != {}}
    if last.network:
        parts["network"] = network(readings)
    return parts


def growth(first: Mapping[str, Number], last: Mapping[str, Number]) -> dict[str, Number]:
    """How much each counter grew. One that shrank was reset, so its growth is unknown: left out."""
    both = ((name, last[name] - first[name]) for name in last if name in first)
    return {name: increase for name, increase in both if increase >= 0}


def share(part: float, whole: float) -> float:
    return round(part / whole, 4)


def shares(
    prefix: str, names: Sequence[str], used: Mapping[str, float], seconds: float
) -> dict[str, float]:
    keys = {name: f"{prefix}_{name}_s" for name in names}
    return {name: share(used[key], seconds) for name, key in keys.items() if key in used}


def cpu(used: Mapping[str, float], seconds: float) -> dict[str, float]:
    figures = {
        name: round(used[name], 4)
        for name in ("own_user_s", "own_system_s", "sampler_s", "throttled_s", "throttled_times")
        if name in used
    }
    if own := [used[name] for name in ("own_user_s", "own_system_s") if name in used]:
        figures["own_cores"] = share(sum(own), seconds)
    for name in ("busy", "iowait", "steal"):
        if used.get("ticks_all") and f"ticks_{name}" in used:
            figures[name] = share(used[f"ticks_{name}"], used["ticks_all"])
    return figures


def memory(levels: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """Each level at its worst: the most bytes in use, the fewest available."""
    worst = {}
    for name in ("own_bytes", "available_bytes", "limit_bytes", "used_bytes"):
        if values := [level[name] for level in levels if name in level]:
            worst[name] = int(min(values) if name == "available_bytes" else max(values))
    return worst


def network(readings: Sequence[Reading]) -> dict[str, dict[str, float]]:
    """Totals of each interface that carried anything, and its highest rate between two readings."""
    figures = {}
    for name, (received, sent) in readings[-1].network.items():
        before = readings[0].network.get(name, (received, sent))
        was_reset = received < before[0] or sent < before[1]
        if was_reset or (received, sent) == before:
            continue
        peaks = [0.0, 0.0]
        for one, two in pairwise(readings):
            seconds = two.network_at_s - one.network_at_s
            if seconds > 0 and name in one.network and name in two.network:
                for way in (0, 1):
                    rate = (two.network[name][way] - one.network[name][way]) / seconds
                    peaks[way] = max(peaks[way], rate)
        figures[name] = {
            "rx_bytes": received - before[0],
            "tx_bytes": sent - before[1],
            "rx_peak_bytes_per_s": round(peaks[0], 1),
            "tx_peak_bytes_per_s": round(peaks[1], 1),
        }
    return figures


def seconds_since_start() -> float:
    """Seconds since this process started, imports included; its CPU time where that is unknown."""
    start = proc.start_ticks(kernel_text("/proc/self/stat"))
    uptime_s = proc.uptime_s(kernel_text("/proc/uptime"))
    if start is None or uptime_s is None:
        return time.process_time()
    return uptime_s - start / os.sysconf("SC_CLK_TCK")


def process_start_s() -> float:
    """When this process started, by the machine's monotonic clock, which all processes share; the
    same number at each call."""
    return _start_s(os.getpid())


@cache
def _start_s(process: int) -> float:
    """A forked process has a start of its own, and the memory of its parent."""
    return time.monotonic() - seconds_since_start()


def boot_id() -> str:
    """A name of the machine's current boot, which no other boot has; empty where unknown."""
    return kernel_text("/proc/sys/kernel/random/boot_id").strip()[:64]
