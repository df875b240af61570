"""Trying again, with jitter, for a limited time.

Invariants: only what another try may mend is tried again. Waits grow from try to try and are drawn
at random, so that many machines do not ask at the same moment. All requests of one client share
their waits: while some fail, the others hold back too. Progress, such as a part of a large object
that has arrived, starts the time again. A caller never waits inside a request: that is made in a
thread of its own, so a stop ends the caller at once, whatever the server does.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")

PATIENCE_S = 300.0
"""How long a store may fail before a request is given up."""
FIRST_S, LONGEST_S = 0.2, 15.0
REPORTED_S, REPORTED_AGAIN_S = 5.0, 30.0
"""From so many seconds of failure on, and then so often, a message of a client tells of it."""
STOP_S = 0.2
"""Within so many seconds a stop ends a caller that waits for an answer."""
REQUESTS = "stoker-request"


class Stopped(Exception):
    """The caller no longer needs the answer."""


class Pace:
    """The wait between two tries, which all requests of a client share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wait_s = 0.0
        self._grew = self._told = -math.inf

    @property
    def pause_s(self) -> float:
        """Seconds until the next try, drawn at random; 0 where no request fails."""
        with self._lock:
            left_s = self._grew + random.uniform(0.5, 1.0) * self._wait_s - time.monotonic()
        return max(left_s, 0.0)

    def failed(self, began: float) -> None:
        """A try that began then has failed. The wait grows once for all tries of one round: a try
        that did not wait for it yet does not make it longer."""
        with self._lock:
            if began > self._grew + 0.5 * self._wait_s:
                self._wait_s = min(max(2 * self._wait_s, FIRST_S), LONGEST_S)
                self._grew = time.monotonic()

    def succeeded(self) -> None:
        """The wait becomes shorter with each request that is answered."""
        if self._wait_s:
            with self._lock:
                self._wait_s = self._wait_s / 2 if self._wait_s > FIRST_S else 0.0

    def may_tell(self) -> bool:
        """Whether it is time for another message of this client."""
        with self._lock:
            if time.monotonic() - self._told < REPORTED_AGAIN_S:
                return False
            self._told = time.monotonic()
            return True


class Patience:
    """The tries of one request."""

    def __init__(
        self,
        limit_s: float = PATIENCE_S,
        stopped: threading.Event | None = None,
        report: Callable[[str], None] = lambda message: None,
        pace: Pace | None = None,
    ) -> None:
        self._limit_s, self._stopped, self._report = limit_s, stopped or threading.Event(), report
        self._pace = pace or Pace()
        self._began = self._tried = time.monotonic()
        self.failures = 0

    @property
    def failing_s(self) -> float:
        """Seconds since the first try, or since the last progress."""
        return time.monotonic() - self._began

    def progress(self) -> None:
        """Something has arrived: the time starts again."""
        self._began = time.monotonic()
        self._pace.succeeded()

    def restart(self) -> None:
        """A part has arrived, perhaps slowly."""
        self._began = time.monotonic()

    def wait_on(self, what: str) -> None:
        """Tell of a wait that is long. Raises TimeoutError where it takes all patience."""
        if self.failing_s >= self._limit_s:
            raise TimeoutError(f"{what} took longer than {self._limit_s:g} s")
        if self.failing_s >= REPORTED_AGAIN_S and self._pace.may_tell():
            self._report(f"{what} has not arrived for {self.failing_s:.0f} s")

    def require_going(self) -> None:
        """Raise Stopped where the caller no longer needs the answer."""
        if self._stopped.is_set():
            raise Stopped

    def begin_try(self) -> None:
        """Wait while this or another request of the client fails. Raises Stopped."""
        pause_s = min(self._pace.pause_s, max(self._limit_s - self.failing_s, 0.0))
        if self._stopped.wait(pause_s) if pause_s else self._stopped.is_set():
            raise Stopped
        self._tried = time.monotonic()

    def may_try_again(self, message: str) -> bool:
        """Whether there is time for another try after one that failed."""
        self.failures += 1
        self._pace.failed(self._tried)
        if self.failing_s >= self._limit_s:
            return False
        if self.failing_s >= REPORTED_S and self._pace.may_tell():
            self._report(f"{message}; trying again since {self.failing_s:.0f} s")
        return True


class RequestThreads:
    """Threads in which requests wait for their answers. Python does not wait for them at its exit.
    There are as many as there were requests at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        self._idle = 0

    def submit(self, call: Callable[[], Result]) -> Future[Result]:
        """Have a call made at once; the future gets what it returns or raises."""
        future: Future[Result] = Future()
        with self._lock:
            is_new = self._idle == 0
            self._idle -= not is_new
        self._calls.put((future, call))
        if is_new:
            threading.Thread(target=self._work, name=REQUESTS, daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
            del future, call  # what a caller has left behind is freed now
            with self._lock:
                self._idle += 1


_threads = RequestThreads()


def _after_fork() -> None:
    """The child of a fork has none of its parent's threads."""
    global _threads
    _threads = RequestThreads()


os.register_at_fork(after_in_child=_after_fork)


def answer_to(
    call: Callable[[], Result],
    stopped: threading.Event,
    waiting: Callable[[], None] = lambda: None,
) -> Result:
    """What a call returns or raises that may block. Raises Stopped as soon as the answer is no
    longer needed: the call is left behind and must not change anything of the caller's. `waiting`
    is called while nothing arrives, and may raise."""
    return answer_of(_threads.submit(call), stopped, waiting)


def answers_to(
    calls: Sequence[Callable[[], Result]], stopped: threading.Event, at_once: int
) -> list[Result]:
    """What several calls return, some of them made at the same time. Raises as `answer_to`."""
    answers: list[Result] = []
    for first in range(0, len(calls), at_once):
        futures = [_threads.submit(call) for call in calls[first : first + at_once]]
        answers += [answer_of(future, stopped) for future in futures]
    return answers


def answer_of(
    future: Future[Result],
    stopped: threading.Event,
    waiting: Callable[[], None] = lambda: None,
) -> Result:
    """What a call of another thread returns or raises. Raises Stopped, and what `waiting` does."""
    while True:
        try:
            error = future.exception(STOP_S)
        except TimeoutError:
            if stopped.is_set():
                raise Stopped from None
            waiting()
        else:
            break
    if error is not None:
        raise error
    return future.result()
