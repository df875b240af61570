"""Download many URLs in parallel, in order, within limits that are polite to servers.

Invariants: one result for every URL, in the order of the URLs. Never more connections at once than
`DownloadLimits` allows, to one host or in all, redirects included. A consumer that takes nothing
stops the downloads: the bodies held for it are bounded in number and in bytes. A host that does not
answer costs a few tries, not a few for each of its URLs. The threads are daemons and their
connections are cut when the consumer leaves: nothing outlives the iteration.

A job goes back to the queue for its next try or its next redirect, so that no thread waits for a
back-off or for a busy host.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from stoker.data.sources.http import Failed, Target, Transfer, get, opener, parse_target

MAX_REDIRECTS = 5
UNREACHABLE_IN_A_ROW = 20
"""After so many failures without an answer between them, a host counts as down."""
REST_S = 60.0
"""How long a host that is down gets no request; its URLs fail at once during that time."""
MAX_WAIT_S = 60.0
"""A host that asks for a longer pause than this is treated like one that is down."""
MAX_HOSTS = 10_000
"""Above this number, hosts that are idle and not down are forgotten."""
POLL_S = 0.1
JOIN_S = 1.0


@dataclass(frozen=True)
class DownloadLimits:
    """How much is downloaded at once, and when a download is given up."""

    per_host: int = 8
    """Connections at once to one host."""
    together: int = 32
    """Connections at once in all."""
    tries: int = 4
    idle_s: float = 20.0
    """A try ends when no byte arrives for so long."""
    total_s: float = 120.0
    """A try ends after so long, redirects included, even if bytes still arrive slowly."""
    max_bytes: int = 64 << 20
    """A longer body is cut here and rejected."""
    first_wait_s: float = 0.5
    """Wait before the second try; doubled before each later one."""
    ahead: int = 16
    """URLs started beyond `together` before the consumer has taken the next body."""
    ahead_bytes: int = 256 << 20
    """While so many bytes are held, only the body that the consumer waits for is started."""
    allow_private: bool = False
    """Private and local addresses may be connected to."""


@dataclass(frozen=True)
class Fetched:
    data: bytes | None
    reason: str | None = None
    """Why there are no bytes, in one line."""
    temporary: bool = False
    """The failure may be temporary: a later run may succeed."""


@dataclass
class _Job:
    number: int
    url: str = field(repr=False)
    target: Target
    tries: int = 0
    redirects: int = 0
    spent_s: float = 0.0
    outside: bool = False
    """A request of this try left this machine."""
    not_before: float = 0.0


@dataclass
class _Host:
    active: int = 0
    failures: int = 0
    not_before: float = 0.0
    down_until: float = 0.0
    reason: str = ""
    """Why it counts as down."""


def fetch_all(
    urls: Sequence[str],
    limits: DownloadLimits | None = None,
    stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Fetched]:
    """One result for each URL, in order. Ends early, and at once, when `stop` returns True."""
    downloads = _Downloads(urls, limits or DownloadLimits(), clock)
    try:
        downloads.begin()
        for number in range(len(urls)):
            if (fetched := downloads.take(number, stop)) is None:
                return
            yield fetched
    finally:
        downloads.end()


def back_off_s(url: str, tries: int, first_s: float) -> float:
    """0.5, 1, 2 ... seconds, plus up to half of it by a hash, so that retries are spread out."""
    digest = hashlib.sha256(f"{tries} {url}".encode("utf-8", "replace")).digest()
    jitter = int.from_bytes(digest[:4]) / (1 << 33)
    return first_s * 2.0 ** (tries - 1) * (1 + jitter)


class _Downloads:
    """The jobs, the hosts and the threads of one `fetch_all`."""

    def __init__(
        self, urls: Sequence[str], limits: DownloadLimits, clock: Callable[[], float]
    ) -> None:
        self._urls, self._limits, self._clock = urls, limits, clock
        self._opener = opener()
        self._lock = threading.Lock()
        self._job_ready = threading.Condition(self._lock)
        self._result_ready = threading.Condition(self._lock)
        self._queue: dict[int, _Job] = {}
        """Jobs that no thread works on, by number."""
        self._hosts: dict[str, _Host] = {}
        self._transfers: set[Transfer] = set()
        self._results: dict[int, Fetched] = {}
        self._held_bytes = self._admitted = self._next = 0
        """`_next` is the number that the consumer waits for, or will ask for next."""
        self._ended = threading.Event()
        self._fault: Exception | None = None
        workers = [self._work] * min(limits.together, len(urls))
        self._threads = [
            threading.Thread(target=run, name="stoker-download", daemon=True)
            for run in [*workers, self._cut_late]
        ]

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Cut every connection; wait up to JOIN_S for the threads to end."""
        with self._lock:
            self._ended.set()
            self._job_ready.notify_all()
            for transfer in self._transfers:
                transfer.cut()
        give_up = time.monotonic() + JOIN_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(give_up - time.monotonic(), 0.0))

    def take(self, number: int, stop: Callable[[], bool]) -> Fetched | None:
        """Wait for a result; None after `stop`. Raises an error of our code that ended a thread."""
        while not stop():
            with self._lock:
                self._next = number
                self._job_ready.notify()
                if number not in self._results:
                    self._result_ready.wait(POLL_S)
                if self._fault is not None:
                    raise self._fault
                if number in self._results:
                    fetched = self._results.pop(number)
                    self._held_bytes -= len(fetched.data or b"")
                    return fetched
        return None

    def _cut_late(self) -> None:
        """Cut transfers that are past their deadline: a socket's time-out is for one read only."""
        while not self._ended.wait(POLL_S):
            now = self._clock()
            with self._lock:
                for transfer in self._transfers:
                    if now > transfer.deadline:
                        transfer.cut()

    def _work(self) -> None:
        try:
            while (job := self._next_job()) is not None:
                self._request(job)
        except Exception as error:
            # An error of our own code: raised in the consumer, which would else wait for ever.
            self._fault = error

    def _request(self, job: _Job) -> None:
        """Send one request of a job and act on the answer."""
        began = self._clock()
        deadline = began + self._limits.total_s - job.spent_s
        transfer = Transfer(deadline, job.outside, self._limits.allow_private)
        with self._lock:
            self._transfers.add(transfer)
            if self._ended.is_set():
                transfer.cut()
        answer: bytes | Target | Failed
        try:
            idle_s = min(self._limits.idle_s, self._limits.total_s)
            answer = get(self._opener, job.target, transfer, idle_s, self._limits.max_bytes)
        except Failed as failure:
            answer = failure
        job.spent_s += self._clock() - began
        job.outside = job.outside or not transfer.internal
        with self._lock:
            self._transfers.discard(transfer)
            self._settle(job, answer)
            self._job_ready.notify()

    def _next_job(self) -> _Job | None:
        """Wait for a job that may start now; None at the end."""
        with self._lock:
            while not self._ended.is_set():
                self._admit()
                job, wait_s = self._choose(self._clock())
                if job is not None:
                    del self._queue[job.number]
                    self._host(job).active += 1
                    self._job_ready.notify()
                    return job
                self._job_ready.wait(wait_s)
            return None

    def _admit(self) -> None:
        """Queue as many URLs as the consumer's position allows."""
        end = min(self._next + self._limits.together + self._limits.ahead, len(self._urls))
        for number in range(self._admitted, end):
            url = self._urls[number]
            try:
                self._queue[number] = _Job(number, url, parse_target(url))
            except Failed as failure:
                self._finish(number, Fetched(None, str(failure)))
        self._admitted = max(self._admitted, end)

    def _choose(self, now: float) -> tuple[_Job | None, float | None]:
        """The first job that may start, or the seconds until one may; jobs of a down host fail."""
        ready_at: list[float] = []
        arriving = sum(transfer.received for transfer in self._transfers)
        full = self._held_bytes + arriving >= self._limits.ahead_bytes
        for number in sorted(self._queue):
            job = self._queue[number]
            host = self._host(job)
            if host.down_until > now:
                del self._queue[number]
                self._finish(number, Fetched(None, host.reason, temporary=True))
            elif (ready := max(job.not_before, host.not_before)) > now:
                ready_at.append(ready)
            elif host.active < self._limits.per_host and (not full or number == self._next):
                return job, None
        return None, min(ready_at) - now if ready_at else None

    def _host(self, job: _Job) -> _Host:
        return self._hosts.setdefault(job.target.host, _Host())

    def _settle(self, job: _Job, answer: bytes | Target | Failed) -> None:
        """Finish a job or queue it again, and update what is known of its host."""
        host = self._host(job)
        host.active -= 1
        if isinstance(answer, Failed):
            self._note_failure(host, job.target.host, answer)
            self._retry(job, answer)
            return
        host.failures = 0
        if isinstance(answer, bytes):
            self._finish(job.number, Fetched(answer))
        elif job.redirects == MAX_REDIRECTS:
            reason = f"download: more than {MAX_REDIRECTS} redirects"
            self._finish(job.number, Fetched(None, reason))
        else:
            job.target, job.redirects = answer, job.redirects + 1
            self._queue[job.number] = job
        if len(self._hosts) > MAX_HOSTS:
            now = self._clock()
            self._hosts = {n: h for n, h in self._hosts.items() if h.active or h.down_until > now}

    def _note_failure(self, host: _Host, name: str, answer: Failed) -> None:
        """Count a host's failures and keep the pause that it asks for."""
        now = self._clock()
        if not answer.unreachable:
            host.failures = 0
        elif not self._ended.is_set():
            host.failures += 1
            if host.failures >= UNREACHABLE_IN_A_ROW:
                host.down_until = now + REST_S
                last = str(answer).removeprefix("download: ")
                host.reason = f"download: host {name} does not answer ({last})"
        if answer.wait_s > MAX_WAIT_S:
            host.down_until = now + answer.wait_s
            host.reason = f"download: host {name} asks for a pause of {answer.wait_s:.0f} s"
        else:
            host.not_before = max(host.not_before, now + answer.wait_s)

    def _retry(self, job: _Job, answer: Failed) -> None:
        """Queue a job again, from its URL on; finish it after the last try or a lasting failure."""
        job.tries += 1
        if not answer.temporary or job.tries >= self._limits.tries:
            self._finish(job.number, Fetched(None, str(answer), answer.temporary))
            return
        wait_s = back_off_s(job.url, job.tries, self._limits.first_wait_s)
        again = _Job(job.number, job.url, parse_target(job.url), job.tries)
        again.not_before = self._clock() + wait_s
        self._queue[job.number] = again

    def _finish(self, number: int, fetched: Fetched) -> None:
        self._results[number] = fetched
        self._held_bytes += len(fetched.data or b"")
        self._result_ready.notify_all()
