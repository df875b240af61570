"""Requests to a store at the same time, in threads that a stop ends.

Invariant: at most so many calls are under way or finished and not taken: memory does not grow with
the number of items. Where the caller leaves early, no further call begins, and those that wait for
a store give up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(
    call: Callable[[Item], Result], items: Iterable[Item], threads: int, stop: Callable[[], object]
) -> Generator[Result]:
    """The results of a call for each item, in order; raises what a call raises, at its turn. Where
    the caller leaves early, `stop` ends the calls that are under way."""
    pool = ThreadPoolExecutor(threads, "stoker-requests")
    pending: deque[Future[Result]] = deque()
    is_done = False
    try:
        for item in items:
            pending.append(pool.submit(call, item))
            if len(pending) >= 2 * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
        is_done = True
    finally:
        if not is_done:
            stop()
        pool.shutdown(wait=is_done, cancel_futures=True)
