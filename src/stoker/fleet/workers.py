"""Tasks in local worker processes.

Invariants: a task is a pure function of its argument. Results are yielded as they are finished, so
that a caller can count them. A worker that dies is an error, never an endless wait. Workers have
the caller's import path; Python would put the working directory in front of it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from typing import TypeVar

from stoker.errors import BadRequest, StokerError
from stoker.host.signals import await_signals, delayed_signals, end_with_parent
from stoker.safe_path import SAFE

Task = TypeVar("Task")
Result = TypeVar("Result")
_starting = threading.Lock()

AHEAD = 2
"""Tasks that are queued beyond one for each worker: enough that no worker waits for a task."""
HELD_BACK_S = 0.1
"""How long a stop signal waits, at most."""


def map_tasks(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Generator[Result]:
    """Run every task, taken from the source a few ahead of the workers: they need not fit in memory
    together. Yields their results; raises what a task raises, and StokerError if a worker dies.
    Where anything is raised, the tasks under way are ended."""
    source = iter(tasks)
    first = list(islice(source, 2))
    if workers <= 1 or len(first) < 2:
        yield from map(function, chain(first, source))
        return
    # spawn: a forked child would inherit the locks that other threads of the caller hold.
    context = multiprocessing.get_context("spawn")
    try:
        # Python also starts a process here that counts semaphores.
        with delayed_signals(), safe_children():
            pool = ProcessPoolExecutor(workers, mp_context=context, initializer=prepare_worker)
    except OSError as error:  # the semaphores of its queues are files there
        raise BadRequest(
            f"worker processes need semaphores in /dev/shm, which refuses them ({error.strerror}): "
            "mount it writable with some space, or use --workers 1"
        ) from error
    pending: set[Future[Result]] = set()
    try:
        for task in chain(first, source):
            with delayed_signals(), safe_children():
                pending.add(pool.submit(function, task))
            del task  # frees its memory here while it is queued
            if len(pending) >= workers + AHEAD:
                yield from finished(pending)
        while pending:
            yield from finished(pending)
    except BrokenProcessPool as error:
        end_workers(pool)  # Python asks them by SIGTERM, which they leave to this process
        await_signals()
        raise StokerError(
            "a worker process died (out of memory, or killed); finished work is kept: start the "
            "same command again, with fewer --workers if memory is short"
        ) from error
    finally:
        if pending:  # an exception ends the work that was begun
            with delayed_signals():
                end_workers(pool)
        pool.shutdown(wait=True, cancel_futures=True)


def end_workers(pool: ProcessPoolExecutor) -> None:
    """End the workers of a pool at once, also those that wait for a store. Python 3.14 has
    `kill_workers` for this, earlier versions have nothing public."""
    for worker in list((pool._processes or {}).values()):
        worker.kill()
    if sys.version_info < (3, 11, 5):
        # A thread of the pool would wait for ever to hand a large task to a dead worker.
        pool._call_queue._reader.close()  # type: ignore[attr-defined]


def finished(pending: set[Future[Result]]) -> list[Result]:
    """Wait for the next results, and take their futures out of `pending`. Stop signals are held
    back for moments: an exception inside `wait` would leave locks held, and the pool would not end.
    """
    while True:
        with delayed_signals():
            done, _ = wait(pending, HELD_BACK_S, FIRST_COMPLETED)
            pending -= done
            if done:
                return [future.result() for future in done]


def refuse_repetition(call: str) -> None:
    """Raise BadRequest where a worker process imports the caller's program and repeats its call: it
    would wait for its own parent."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise BadRequest(
            f"{call} starts processes that import your program, and ran again there: call it below "
            "if __name__ == '__main__':, or with workers=1"
        )


@contextmanager
def safe_children() -> Iterator[None]:
    """A block in which Python processes are started that import nothing from the working directory;
    they receive the caller's import path. The variable is then what it was."""
    with _starting:
        before = os.environ.get(SAFE)
        os.environ[SAFE] = "1"
        try:
            yield
        finally:
            if before is None:
                del os.environ[SAFE]
            else:
                os.environ[SAFE] = before


def prepare_worker() -> None:
    """End with the parent, and close standard error: image libraries print there for bad files."""
    parent = multiprocessing.parent_process()
    end_with_parent(parent.pid if parent and parent.pid else os.getppid(), signal.SIGKILL)
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 2)
    os.close(devnull)
