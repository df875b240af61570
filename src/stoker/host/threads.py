"""Which threads of this process use the cores, and how long threads wait for the interpreter lock.

Invariants: the seconds of a thread that ended are not counted; those of a new thread all are. The
wait for the lock is the lateness of a short sleep, minus the time that the thread was ready to run
and had no core, which is not the lock's fault. Time that a hypervisor or a quota took looks like a
wait for the lock; few of many wakes are late for that reason, so the median is right.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import statistics
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from stoker.host import proc
from stoker.host.counters import KernelFile

MOST_ENDING_S = 10.0
"""How long threads and libraries may take to clean up at the end of a process."""
LEAST_CORES = 0.01
MOST_THREADS = 8
SPINS = "10000"
"""How often a thread that waits for another looks again before it sleeps: well below a millisecond.
OpenMP's own default is 300,000, which is 5 to 15 ms (docs/results/verdict.md)."""


@dataclass(frozen=True)
class ThreadSeconds:
    """A thread and the CPU seconds it had used at one moment."""

    name: str
    python: bool
    """Whether the interpreter knows the thread, which can then hold the interpreter lock."""
    cpu_s: float


def scan(tasks: str = "/proc/self/task") -> dict[int, ThreadSeconds]:
    """Every thread of this process by its id. Costs a few system calls for each thread."""
    try:
        ids = [int(name) for name in os.listdir(tasks) if name.isdigit()]  # noqa: PTH208
    except OSError:
        return {}
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    seconds = {}
    for thread_id in ids:
        file = KernelFile(f"{tasks}/{thread_id}/stat")
        stat = proc.thread_ticks(file.text())  # None if the thread has ended
        file.close()
        if stat is not None:
            name, is_python = names.get(thread_id, stat[0]), thread_id in names
            seconds[thread_id] = ThreadSeconds(name, is_python, stat[1] / ticks_per_s)
    return seconds


def busiest(
    first: Mapping[int, ThreadSeconds], last: Mapping[int, ThreadSeconds], seconds: float
) -> list[dict[str, Any]]:
    """The threads that used most CPU time, in cores; threads of one name are added up."""
    used: dict[tuple[str, bool], list[float]] = {}
    for thread_id, thread in last.items():
        before_s = first[thread_id].cpu_s if thread_id in first else 0.0
        # An id with fewer seconds than before was reused by a new thread, which began at zero.
        since_s = thread.cpu_s - (before_s if before_s <= thread.cpu_s else 0.0)
        used.setdefault((thread.name, thread.python), []).append(since_s / seconds)
    ranked = sorted(used.items(), key=lambda item: -sum(item[1]))
    return [
        {"name": name, "python": python, "cores": round(sum(cores), 3), "count": len(cores)}
        for (name, python), cores in ranked[:MOST_THREADS]
        if sum(cores) >= LEAST_CORES
    ]


def lateness(late_s: Sequence[float], switch_s: float) -> dict[str, float]:
    """How late the wakes were; empty without wakes. A thread that hogs the lock makes nearly all of
    them late by the switch interval; work that releases the lock delays almost none."""
    if not late_s:
        return {}
    return {
        "wakes": len(late_s),
        "late_median_s": round(statistics.median(late_s), 6),
        "late_mean_s": round(statistics.fmean(late_s), 6),
        "late_share": round(sum(late > switch_s / 2 for late in late_s) / len(late_s), 4),
        "switch_s": switch_s,
    }


class OwnDelay(KernelFile):
    """Seconds that a thread, by default the calling one, was ready to run and had no core. Read
    without releasing the interpreter lock: waiting to get it back would add to the delay."""

    def __init__(self, path: str = "/proc/thread-self/schedstat") -> None:
        super().__init__(path)
        self._buffer = ctypes.create_string_buffer(128)
        try:
            self._read = ctypes.PyDLL(None).pread
            self._read.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]
            self._read.restype = ctypes.c_ssize_t
        except (OSError, AttributeError, TypeError):
            self.close()

    def seconds(self) -> float | None:
        """The delay so far; None where the kernel does not count it."""
        if self._handle is None:
            return None
        size = self._read(self._handle, self._buffer, len(self._buffer), 0)
        schedule = proc.schedule_s(self._buffer.raw[: max(0, size)].decode("ascii", "replace"))
        if schedule is None:
            self.close()
            return None
        return schedule[1]


def limit_spinning(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let threads that compute together wait for each other awake only for a moment, then asleep.
    On cores that other programs use too, a thread may wait long for one that has no core; awake, it
    takes even more of the cores. Must be called before torch is imported: its OpenMP reads the
    variable then. What the user has set stays. Results do not depend on it."""
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environment.keys():
        environment["GOMP_SPINCOUNT"] = SPINS


class CoreUse:
    """What this process used of the cores, and how long the calling thread waited for one."""

    def __init__(self) -> None:
        self._delay = OwnDelay()
        self._last = self._read()

    def _read(self) -> dict[str, float]:
        delay_s = self._delay.seconds()
        return {"cpu": time.process_time()} | ({} if delay_s is None else {"wait": delay_s})

    def since_last(self) -> dict[str, float]:
        """Seconds since the last call: `cpu` of all threads, `wait` of the calling thread."""
        last, self._last = self._last, self._read()
        return {
            name: round(now - last[name], 6) for name, now in self._last.items() if name in last
        }


def late_wake(stop_lock: threading.Lock, nap_s: float, delay: OwnDelay) -> tuple[bool, float]:
    """Sleep for `nap_s`, or until `stop_lock` is free. Returns whether it was free, and how many
    seconds late the thread woke because it waited for the interpreter lock."""
    delay_before = delay.seconds()
    began = time.perf_counter()
    stopped = stop_lock.acquire(timeout=nap_s)
    late_s = time.perf_counter() - began - nap_s
    delay_after = delay.seconds()
    if delay_before is not None and delay_after is not None:
        late_s -= delay_after - delay_before
    return stopped, max(0.0, late_s)


class LockMeter:
    """The longest time, within the context, for which the thread that opened it held the
    interpreter lock. Times without a core, of this thread or the one that waits, do not count.

        with LockMeter() as meter:
            save()
        longest_s = meter.longest_s
    """

    NAP_S = 0.0005

    def __enter__(self) -> Self:
        self.longest_s = 0.0
        self._stop = threading.Lock()
        self._stop.acquire()
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._thread = threading.Thread(target=self._measure, args=(path,), name="stoker-lock")
        self._thread.start()
        return self

    def _measure(self, path: str) -> None:
        own, holder, stopped = OwnDelay(), OwnDelay(path), False
        delay_s = holder.seconds() or 0.0
        while not stopped:
            stopped, late_s = late_wake(self._stop, self.NAP_S, own)
            delay_before_s, delay_s = delay_s, holder.seconds() or 0.0
            self.longest_s = max(self.longest_s, late_s - (delay_s - delay_before_s))
        own.close()
        holder.close()

    def __exit__(self, *error: object) -> None:
        self._stop.release()
        self._thread.join()


def end_process(code: int) -> None:
    """End this process with a code, as Python does, but within `MOST_ENDING_S`: threads may hang in
    storage. And at once after that: libraries of C++ abort in daemon threads that still run."""
    if "torch" in sys.modules or threading.active_count() > 1:
        with suppress(OSError):  # a closed terminal or pipe
            sys.stdout.flush()
        limit = threading.Timer(MOST_ENDING_S, os._exit, (code,))
        limit.daemon = True
        limit.start()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(code)
