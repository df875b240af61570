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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from stoker.errors import StokerError

Task = TypeVar("Task")
Result = TypeVar("Result")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers, terminals and people send to a process that shall stop in order."""
_PR_SET_PDEATHSIG = 1


def usable_cores() -> int:
    """Cores this process may use: affinity and the cgroup's quota, never the machine's count."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(cores or 1, cgroup_cores()))


def cgroup_cores(root: str = "/sys/fs/cgroup") -> int:
    """Whole cores of the container's CPU quota; very many where there is none."""
    try:
        quota, period = Path(root, "cpu.max").read_text().split()
        if quota != "max":
            return max(1, int(int(quota) / int(period) + 0.5))
    except (OSError, ValueError):
        pass
    return 1 << 20


def map_tasks(
    function: Callable[[Task], Result], tasks: Sequence[Task], workers: int
) -> Iterator[Result]:
    """Run every task; yield results in the order in which they are finished."""
    workers = min(workers, len(tasks))
    if workers <= 1:
        yield from map(function, tasks)
        return
    # spawn: a forked child would inherit the locks of whatever threads the caller runs.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=begin_worker)
    try:
        with ignored_interrupt():
            futures = [pool.submit(function, task) for task in tasks]
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool as error:
        raise StokerError(
            "a worker process died (out of memory, or killed): finished work is kept, "
            "the same command goes on; fewer --workers need less memory"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def ignored_interrupt() -> Iterator[None]:
    """Processes started here ignore Ctrl-C from their first moment: it reaches the whole group,
    and the parent decides."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def begin_worker() -> None:
    """A worker ends with its parent, however that ends."""
    end_with_parent(signal.SIGKILL)


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Receive this signal when the parent dies, however it dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
