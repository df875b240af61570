"""Tasks over local processes.

Invariants: a task is a pure function of its argument; results come as they are finished, so a
caller can count; a worker that dies is an error with a name, never an endless wait.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

from stoker.errors import StokerError

Task = TypeVar("Task")
Result = TypeVar("Result")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers, terminals and people send to a process that shall stop in order."""
_PR_SET_PDEATHSIG = 1
CGROUPS, OWN_CGROUP = "/sys/fs/cgroup", "/proc/self/cgroup"
AHEAD = 2
"""Tasks that wait for a free worker: enough that none of them waits for its task."""


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


def map_tasks(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Generator[Result]:
    """Run every task; yield results in the order in which they are finished. Tasks are taken from
    their source a few ahead of the workers, so that a long row of them fits in memory."""
    coming = iter(tasks)
    first = list(islice(coming, 2))
    if workers <= 1 or len(first) < 2:
        yield from map(function, chain(first, coming))
        return
    # spawn: a forked child would inherit the locks of whatever threads the caller runs.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=begin_worker)
    under_way: set[Future[Result]] = set()
    try:
        for task in chain(first, coming):
            with held_signals():
                under_way.add(pool.submit(function, task))
            del task  # not to be held here while it waits there
            if len(under_way) >= workers + AHEAD:
                done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        for future in as_completed(under_way):
            yield future.result()
    except BrokenProcessPool as error:
        raise StokerError(
            "a worker process died (out of memory, or killed): finished work is kept, "
            "the same command goes on; fewer --workers need less memory"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def held_signals() -> Iterator[None]:
    """Start processes undisturbed: they never hear Ctrl-C, which reaches the whole group, for the
    parent decides; and the parent hears whatever came meanwhile as soon as this is over."""
    came: list[int] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    handlers: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            # A mask is for one thread, and another may take the signal: the handler counts.
            for number in STOP_SIGNALS:
                handlers[number] = signal.getsignal(number)
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for heard in came:
            signal.raise_signal(heard)


def begin_worker() -> None:
    """A worker ends with its parent, however that ends, and is quiet: what goes wrong in a task is
    told by its result, and the libraries below complain on standard error about every bad file."""
    parent = multiprocessing.parent_process()
    end_with_parent(parent.pid if parent and parent.pid else os.getppid(), signal.SIGKILL)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    os.close(quiet)


def hold_stop_signals() -> None:
    """Let signals to stop wait until `hear_stop_signals`: also in a program that replaces this one,
    which would die of them before it has said what to do about them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def hear_stop_signals() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def end_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Receive this signal when the parent dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)  # it has died before we could ask for that
