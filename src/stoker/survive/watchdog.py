"""The watchdog: report a run that makes no progress, and where each rank is.

Invariants: it runs in its own thread and needs neither the main thread nor the link. No step for
TIMES_USUAL times the median step, and at least `after_s`, is a stall; the first step, and work that
takes as long (compiling), may take FIRST_STEP_S. In a stall every rank writes its
phase, step, sample numbers and Python stacks to the run, and the rank that is furthest behind is
named. After GIVE_UP_AFTER stalls the process ends, so that a stuck machine costs nothing more.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

TIMES_USUAL = 5
FIRST_STEP_S = 600.0
"""Time allowed for the first step, in which kernels are chosen and the model is compiled."""
GATHER_S = 2.0
"""Time for the other ranks to write where they are."""
GIVE_UP_AFTER = 5
"""Stalls in a row after which the process ends."""
POLL_S = 0.2


@dataclass(frozen=True)
class Standing:
    """Where a rank is. The fields are those of stall-rankN.json."""

    rank: int
    host: str
    step: int
    phase: str
    place: int
    """The number of the phase within a step."""
    seconds: float
    samples: list[int] = field(default_factory=list)
    stacks: dict[str, list[str]] = field(default_factory=dict)
    time: float = 0.0

    @property
    def progress(self) -> tuple[int, int]:
        return self.step, self.place


def describe_stall(standings: Sequence[Standing], world: int) -> str:
    """One line about the ranks that the others wait for. Pure."""
    missing = sorted(set(range(world)) - {standing.rank for standing in standings})
    if missing:
        names = ", ".join(f"rank {rank}" for rank in missing)
        return f"{names} did not report: the machine is lost, or the process is stopped"
    behind = min(standings, key=lambda standing: standing.progress)
    slowest = f"rank {behind.rank} on {behind.host} is in '{behind.phase}' of step {behind.step}"
    others = sorted({s.phase for s in standings if s.progress != behind.progress})
    if others:
        return f"{slowest}; the others are ahead, in {', '.join(others)}"
    return f"{slowest}, and so are all other ranks" if world > 1 else slowest


def stacks() -> dict[str, list[str]]:
    """The Python stack of every thread of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(ident, '?')} {ident}": traceback.format_stack(frame)
        for ident, frame in sys._current_frames().items()
    }


def bounded(function: Callable[[], object], seconds: float = 2.0) -> None:
    """Call a function for so long at most, as a disk may hang for ever; exceptions are ignored."""

    def attempt() -> None:
        with suppress(Exception):
            function()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)


@dataclass
class Watchdog:
    """Watches one rank: the main thread calls `beat` after each step."""

    _standing: Callable[[float], Standing]
    folder: Path
    world: int
    after_s: float
    report: Callable[[str], None]
    give_up: Callable[[str], None]
    patience: int = GIVE_UP_AFTER
    clock: Callable[[], float] = time.monotonic
    stalls: list[str] = field(default_factory=list)
    """Descriptions of stalls that are not in the events yet."""

    def __post_init__(self) -> None:
        self._paces: deque[float] = deque(maxlen=50)
        self._beat, self._beats = self.clock(), 0
        self._is_long = False
        self._over = threading.Event()

    def begin(self) -> None:
        self._beat = self.clock()
        threading.Thread(target=self._watch, name="stoker-watchdog", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def touch(self) -> None:
        """Note that the main thread is alive, in work that takes longer than a step."""
        self._beat = self.clock()

    @contextmanager
    def long_work(self) -> Iterator[None]:
        """A block of work that may take as long as a first step, at any point of a run."""
        self.touch()
        self._is_long = True
        try:
            yield
        finally:
            self.touch()  # before the usual limit counts again
            self._is_long = False

    def beat(self) -> None:
        """Note that the main thread has finished a step."""
        now = self.clock()
        if self._beats:
            self._paces.append(now - self._beat)
        self._beat, self._beats = now, self._beats + 1

    @property
    def limit_s(self) -> float:
        """Seconds without a beat that are a stall."""
        if self._is_long or self._beats < 2:
            return max(self.after_s, FIRST_STEP_S)
        return max(self.after_s, TIMES_USUAL * statistics.median(list(self._paces)))

    def _watch(self) -> None:
        reported = 0
        while not self._over.wait(POLL_S):
            still = self.clock() - self._beat
            if still < self.limit_s:
                reported = 0
            elif still > self.limit_s * (reported + 1):
                reported += 1
                try:
                    message = self._report(still)
                except Exception as error:  # such as a full disk: giving up matters more
                    message = f"no step for {still:.0f} s ({error})"
                # The report takes a while, in which a step may have ended.
                moved = self._over.is_set() or self.clock() - self._beat < still
                if reported >= self.patience and not moved:
                    self.give_up(message)

    def _report(self, still_s: float) -> str:
        """Write where this rank is, gather the other ranks, and return a line about all of them."""
        own = self._standing(still_s)
        path = self.folder / f"stall-rank{own.rank}.json"
        bounded(lambda: path.write_text(json.dumps(asdict(own))))
        self._over.wait(GATHER_S)
        standings = {own.rank: own}
        bounded(lambda: standings.update(self._gather(own)))
        ranks = describe_stall(list(standings.values()), self.world)
        message = f"no step for {still_s:.0f} s: {ranks}"
        self.stalls.append(message)
        if own.rank == 0:
            self.report(f"{message}; stacks in {self.folder}")
        return message

    def _gather(self, own: Standing) -> dict[int, Standing]:
        """Where the ranks are, by the files that they wrote lately."""
        standings = {}
        for path in sorted(self.folder.glob("stall-rank*.json")):
            with suppress(OSError, ValueError):
                facts = json.loads(path.read_text())
                if facts["time"] > own.time - self.limit_s / 2:
                    standings[facts["rank"]] = Standing(**facts)
        return standings
