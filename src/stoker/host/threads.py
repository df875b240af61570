"""Which threads of this process use the cores, and how long the interpreter lock is waited for.

Invariants: a thread that ended takes its seconds with it; one that is new brings all of its own.
The wait for the lock is the lateness of a short sleep, less the time that the sleeper was ready to
run and had no core: on a busy machine that is not the lock's fault. Time that a hypervisor or a
quota took looks like a wait for the lock; it is rare where wakes are many, so the median stands.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from stoker.errors import StokerError
from stoker.host import proc
from stoker.host.counters import KernelFile

LEAST_CORES = 0.01
MOST_THREADS = 8


@dataclass(frozen=True)
class ThreadSeconds:
    """One thread at one moment."""

    name: str
    python: bool
    """Known to the interpreter, and so one that may hold its lock."""
    cpu_s: float


def scan(tasks: str = "/proc/self/task") -> dict[int, ThreadSeconds]:
    """Every thread of this process and the seconds it has used. Costs a few calls a thread."""
    try:
        numbers = [int(name) for name in os.listdir(tasks) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return {}
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    found = {}
    for number in numbers:
        file = KernelFile(f"{tasks}/{number}/stat")
        said = proc.thread_ticks(file.text())  # nothing, if it has ended meanwhile
        file.close()
        if said is not None:
            name = names.get(number, said[0])
            found[number] = ThreadSeconds(name, number in names, said[1] / ticks_per_s)
    return found


def busiest(
    first: Mapping[int, ThreadSeconds], last: Mapping[int, ThreadSeconds], seconds: float
) -> list[dict[str, Any]]:
    """The threads that used most, those of one name together, in cores."""
    used: dict[tuple[str, bool], list[float]] = {}
    for number, thread in last.items():
        before_s = first[number].cpu_s if number in first else 0.0
        # A number that is given again belongs to another thread, which began at zero.
        since_s = thread.cpu_s - (before_s if before_s <= thread.cpu_s else 0.0)
        used.setdefault((thread.name, thread.python), []).append(since_s / seconds)
    ranked = sorted(used.items(), key=lambda item: -sum(item[1]))
    return [
        {"name": name, "python": python, "cores": round(sum(cores), 3), "count": len(cores)}
        for (name, python), cores in ranked[:MOST_THREADS]
        if sum(cores) >= LEAST_CORES
    ]


def lateness(late_s: Sequence[float], switch_s: float) -> dict[str, float]:
    """How late the wakes were. A thread that hogs the lock makes nearly all of them late by the
    switch interval; work that gives the lock away makes next to none of them so."""
    if not late_s:
        return {}
    return {
        "wakes": len(late_s),
        "late_median_s": round(statistics.median(late_s), 6),
        "late_mean_s": round(statistics.fmean(late_s), 6),
        "late_share": round(sum(late > switch_s / 2 for late in late_s) / len(late_s), 4),
        "switch_s": switch_s,
    }


class OwnDelay:
    """Seconds that the calling thread was ready to run and had no core. Made and asked in that
    thread, and read without giving the interpreter lock away: the wait to get it back would add a
    delay of its own to what is measured."""

    def __init__(self, path: str = "/proc/thread-self/schedstat") -> None:
        self._handle: int | None = None
        self._buffer = ctypes.create_string_buffer(128)
        with suppress(OSError, AttributeError, TypeError):
            self._read = ctypes.PyDLL(None).pread
            self._read.argtypes = (
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.c_size_t,
                ctypes.c_long,
            )
            self._read.restype = ctypes.c_ssize_t
            self._handle = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))

    def seconds(self) -> float | None:
        if self._handle is None:
            return None
        size = self._read(self._handle, self._buffer, len(self._buffer), 0)
        words = self._buffer.raw[: max(0, size)].split()
        if len(words) != 3 or not words[1].isdigit():
            self.close()
            return None
        return int(words[1]) / 1e9

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def late_wake(ending: threading.Lock, nap_s: float, delay: OwnDelay) -> tuple[bool, float]:
    """Sleep until the time is over or the lock `ending` is free: whether it was, and how late the
    sleeper came to, in seconds, for want of the interpreter lock."""
    without_core = delay.seconds()
    began = time.perf_counter()
    ended = ending.acquire(timeout=nap_s)
    late = time.perf_counter() - began - nap_s
    now = delay.seconds()
    if without_core is not None and now is not None:
        late -= now - without_core
    return ended, max(0.0, late)


def exit_past_hanging_threads(work: Callable[[], int], prefix: str) -> int:
    """The exit code of some work. Where threads whose name has this prefix hang (in storage, or in
    a rendezvous that does not answer), the process ends here: Python would wait for them at its
    exit, or abort."""

    def hang() -> bool:
        return any(thread.name.startswith(prefix) for thread in threading.enumerate())

    try:
        code = work()
    except StokerError as error:
        if not hang():
            raise
        print(f"stoker: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    if hang():
        sys.stdout.flush()
        os._exit(code)
    return code
