"""Many URLs to bytes: in order, side by side, within limits that a server would call polite.

Invariants: one answer for every URL, in the order of the URLs, whatever the order in which they
came. Never more connections at once than `DownloadLimits` allows, to one host or in all, redirects
included. A consumer that takes nothing stops the downloads: bodies held for it are bounded in
number and in bytes. A host that does not answer costs a few tries, not a few for each of its URLs.
Threads are daemons and are cut off when the consumer leaves: nothing outlives the iteration.

Standard library alone, see `web`. A job goes back to the queue for its next try or its next hop, so
that neither a back-off nor a busy host keeps a thread waiting.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from stoker.data.sources.http import Connection, Failed, Target, ask, opener, place_of

MOST_HOPS = 5
UNREACHABLE_IN_A_ROW = 20
"""So many failures without a single answer between them, and a host counts as down."""
REST_S = 60.0
"""How long a host that is down is left alone; what is asked of it meanwhile fails at once."""
LONGEST_WAIT_S = 60.0
"""A host that asks for a longer pause than this is left alone like one that is down."""
HOSTS_KEPT = 10_000
LOOK_UP_S = 0.1
JOIN_S = 1.0


@dataclass(frozen=True)
class DownloadLimits:
    """The limits."""

    per_host: int = 8
    """Connections at once to one host."""
    together: int = 32
    """Connections at once in all."""
    tries: int = 4
    idle_s: float = 20.0
    """No byte for so long: give up this try."""
    total_s: float = 120.0
    """A whole try at most, redirects included: a slow drip must not last for ever."""
    max_bytes: int = 64 << 20
    """A longer body is cut here and rejected."""
    first_wait_s: float = 0.5
    """Before the second try; doubled before each one after it."""
    ahead: int = 16
    """URLs begun beyond `together` before the consumer has taken the next body."""
    ahead_bytes: int = 256 << 20
    """Nothing new is begun, but for the body that the consumer waits for, while so much is held."""


@dataclass(frozen=True)
class Fetched:
    """What became of one URL."""

    data: bytes | None
    reason: str | None = None
    """Why there are no bytes, in one line."""
    passing: bool = False
    """The failure may pass: worth another try on a later run."""


@dataclass
class _Job:
    number: int
    url: str = field(repr=False)
    place: Target
    tries: int = 0
    hops: int = 0
    spent_s: float = 0.0
    outside: bool = False
    not_before: float = 0.0


@dataclass
class _Host:
    active: int = 0
    failures: int = 0
    not_before: float = 0.0
    rests_until: float = 0.0
    why: str = ""


def never() -> bool:
    return False


def fetch_all(
    urls: Sequence[str], manners: DownloadLimits | None = None, stop: Callable[[], bool] = never
) -> Iterator[Fetched]:
    """One answer for each URL, in order. Ends early, and at once, where `stop` says so."""
    downloads = _Downloads(urls, manners or DownloadLimits())
    try:
        downloads.begin()
        for number in range(len(urls)):
            fetched = downloads.take(number, stop)
            if fetched is None:
                return
            yield fetched
    finally:
        downloads.end()


def back_off_s(url: str, tries: int, first_s: float) -> float:
    """0.5, 1, 2 ... and up to half as much again, by a hash: not all come back at once."""
    jitter = int.from_bytes(
        hashlib.sha256(f"{tries} {url}".encode("utf-8", "replace")).digest()[:4]
    )
    return first_s * 2.0 ** (tries - 1) * (1 + jitter / (1 << 33))


class _Downloads:
    """The jobs, the hosts and the threads of one `fetch_all`."""

    def __init__(self, urls: Sequence[str], manners: DownloadLimits) -> None:
        self._urls, self._manners = urls, manners
        self._speak = opener()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._news = threading.Condition(self._lock)
        self._waiting: list[_Job] = []
        self._hosts: dict[str, _Host] = {}
        self._lines: set[Connection] = set()
        self._done: dict[int, Fetched] = {}
        self._held = 0
        self._admitted = 0
        self._wanted = 0
        """The number that the consumer waits for, or will ask for next."""
        self._ended = threading.Event()
        self._broken: Exception | None = None
        names = ["stoker-download"] * min(manners.together, len(urls))
        self._threads = [threading.Thread(target=self._run, name=n, daemon=True) for n in names]
        self._clock = threading.Thread(target=self._watch, name="stoker-download", daemon=True)

    def begin(self) -> None:
        for thread in [*self._threads, self._clock]:
            thread.start()

    def end(self) -> None:
        """Cut every connection and see the threads off, those that listen."""
        with self._lock:
            self._ended.set()
            self._work.notify_all()
            for line in self._lines:
                line.cut()
        give_up = time.monotonic() + JOIN_S
        for thread in [*self._threads, self._clock]:
            if thread.is_alive():
                thread.join(max(give_up - time.monotonic(), 0.0))

    def take(self, number: int, stop: Callable[[], bool]) -> Fetched | None:
        """The answer to a URL when it is there; None where the wish to stop came first."""
        while True:
            if stop():
                return None
            with self._lock:
                self._wanted = number
                self._work.notify()
                if number not in self._done:
                    self._news.wait(LOOK_UP_S)
                if self._broken is not None:
                    raise self._broken
                if number in self._done:
                    fetched = self._done.pop(number)
                    self._held -= len(fetched.data or b"")
                    return fetched

    def _watch(self) -> None:
        """Cut what has lasted too long: a time-out of a socket is for one read alone."""
        while not self._ended.wait(LOOK_UP_S):
            now = time.monotonic()
            with self._lock:
                for line in self._lines:
                    if now > line.deadline:
                        line.cut()

    def _run(self) -> None:
        try:
            while (job := self._next()) is not None:
                self._do(job)
        except Exception as error:
            # A fault of ours: the consumer shall see it, not wait for ever.
            self._broken = error

    def _do(self, job: _Job) -> None:
        """One question, and what follows from its answer."""
        began = time.monotonic()
        line = Connection(began + self._manners.total_s - job.spent_s, job.outside)
        with self._lock:
            self._lines.add(line)
            if self._ended.is_set():
                line.cut()
        answer: bytes | Target | Failed
        try:
            idle_s = min(self._manners.idle_s, self._manners.total_s)
            answer = ask(self._speak, job.place, line, idle_s, self._manners.max_bytes)
        except Failed as why:
            answer = why
        job.spent_s += time.monotonic() - began
        job.outside = job.outside or not line.inside
        with self._lock:
            self._lines.discard(line)
            self._settle(job, answer)
            self._work.notify()

    def _next(self) -> _Job | None:
        """The first job that may begin now; waits for one."""
        with self._lock:
            while not self._ended.is_set():
                self._admit()
                now = time.monotonic()
                job, wait_s = self._choose(now)
                if job is not None:
                    self._waiting.remove(job)
                    self._host(job).active += 1
                    self._work.notify()
                    return job
                self._work.wait(wait_s)
            return None

    def _admit(self) -> None:
        """Let in as many URLs as the consumer's place allows."""
        end = min(self._wanted + self._manners.together + self._manners.ahead, len(self._urls))
        while self._admitted < end:
            number, self._admitted = self._admitted, self._admitted + 1
            url = self._urls[number]
            try:
                self._waiting.append(_Job(number, url, place_of(url)))
            except Failed as why:
                self._finish(number, Fetched(None, str(why)))

    def _choose(self, now: float) -> tuple[_Job | None, float | None]:
        """The job to begin, or how long until there may be one."""
        best: _Job | None = None
        soonest: float | None = None
        full = self._held + sum(line.received for line in self._lines) >= self._manners.ahead_bytes
        for job in list(self._waiting):
            host = self._host(job)
            if host.rests_until > now:
                self._waiting.remove(job)
                self._finish(job.number, Fetched(None, host.why, passing=True))
                continue
            ready = max(job.not_before, host.not_before)
            if ready > now:
                soonest = min(ready, soonest or ready)
            elif host.active < self._manners.per_host and (not full or job.number == self._wanted):
                best = job if best is None or job.number < best.number else best
        return best, None if soonest is None else soonest - now

    def _host(self, job: _Job) -> _Host:
        return self._hosts.setdefault(job.place.host, _Host())

    def _settle(self, job: _Job, answer: bytes | Target | Failed) -> None:
        """What an answer means for its job and its host."""
        host = self._host(job)
        host.active -= 1
        if isinstance(answer, Failed):
            self._note_failure(host, job.place.host, answer)
            self._try_again(job, answer)
            return
        host.failures = 0
        if isinstance(answer, bytes):
            self._finish(job.number, Fetched(answer))
        elif job.hops == MOST_HOPS:
            self._finish(job.number, Fetched(None, f"download: more than {MOST_HOPS} redirects"))
        else:
            job.place, job.hops = answer, job.hops + 1
            self._waiting.append(job)
        if len(self._hosts) > HOSTS_KEPT:
            now = time.monotonic()
            busy = {n: h for n, h in self._hosts.items() if h.active or h.rests_until > now}
            self._hosts = busy

    def _note_failure(self, host: _Host, name: str, answer: Failed) -> None:
        now = time.monotonic()
        if not answer.unreachable:
            host.failures = 0
        elif not self._ended.is_set():
            host.failures += 1
            if host.failures >= UNREACHABLE_IN_A_ROW:
                host.rests_until = now + REST_S
                last = str(answer).removeprefix("download: ")
                host.why = f"download: host {name} does not answer ({last})"
        if answer.wait_s is None:
            return
        if answer.wait_s > LONGEST_WAIT_S:
            host.rests_until = now + answer.wait_s
            host.why = f"download: host {name} asks to be left alone for {answer.wait_s:.0f} s"
        else:
            host.not_before = max(host.not_before, now + answer.wait_s)

    def _try_again(self, job: _Job, answer: Failed) -> None:
        """From the first URL on, later; unless it is hopeless or was tried often enough."""
        job.tries += 1
        if not answer.passing or job.tries >= self._manners.tries:
            self._finish(job.number, Fetched(None, str(answer), answer.passing))
            return
        wait_s = back_off_s(job.url, job.tries, self._manners.first_wait_s)
        job.not_before = time.monotonic() + wait_s
        job.place, job.hops, job.spent_s, job.outside = place_of(job.url), 0, 0.0, False
        self._waiting.append(job)

    def _finish(self, number: int, fetched: Fetched) -> None:
        self._done[number] = fetched
        self._held += len(fetched.data or b"")
        self._news.notify_all()
