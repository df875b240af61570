"""Tasks over local processes.

Invariants: a task is a pure function of its argument; results come as they are finished, so a
caller can count; a worker that dies is an error with a name, never an endless wait.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import TypeVar

from stoker.errors import StokerError
from stoker.host.signals import end_with_parent, delayed_signals

Task = TypeVar("Task")
Result = TypeVar("Result")

AHEAD = 2
"""Tasks that wait for a free worker: enough that none of them waits for its task."""


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
            with delayed_signals():
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


def begin_worker() -> None:
    """A worker ends with its parent, however that ends, and is quiet: what goes wrong in a task is
    told by its result, and the libraries below complain on standard error about every bad file."""
    parent = multiprocessing.parent_process()
    end_with_parent(parent.pid if parent and parent.pid else os.getppid(), signal.SIGKILL)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    os.close(quiet)
