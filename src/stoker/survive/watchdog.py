"""A run that stands still says so, and where each rank stands.

Invariants: a thread of its own watches; it needs neither the main thread nor the network. No step
for five times the usual, and at least `after_s`, is a stall: every rank then leaves its phase,
step, sample numbers and Python stacks in the run, and the one that is furthest behind is named.
Much later still the process gives up, so that nobody pays for a machine that stands still.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

TIMES_USUAL = 5
FIRST_STEP_S = 600.0
"""What the first step may take: kernels are chosen, networks compiled."""
GATHER_S = 2.0
"""How long the others have to say where they stand."""
GIVE_UP_AFTER = 5
"""Stalls in a row after which a process gives up."""
POLL_S = 0.2


@dataclass(frozen=True)
class Standing:
    """Where a rank stands."""

    rank: int
    host: str
    step: int
    phase: str
    place: int
    """How far into a step the phase is."""
    seconds: float
    samples: list[int] = field(default_factory=list)
    stacks: dict[str, list[str]] = field(default_factory=dict)
    time: float = 0.0

    @property
    def progress(self) -> tuple[int, int]:
        return self.step, self.place


def odd_one_out(standings: Sequence[Standing], world: int) -> str:
    """Who holds the others up, in one line. Pure."""
    silent = sorted(set(range(world)) - {standing.rank for standing in standings})
    if silent:
        names = ", ".join(f"rank {rank}" for rank in silent)
        return f"{names} left no sign: the machine is lost, or the process is stopped"
    behind = min(standings, key=lambda standing: standing.progress)
    first = f"rank {behind.rank} on {behind.host} is in '{behind.phase}' of step {behind.step}"
    if len({standing.progress for standing in standings}) == 1:
        return f"every rank is there: {first}" if world > 1 else first
    others = sorted({s.phase for s in standings if s.progress != behind.progress})
    return f"{first}; the others are further, in {', '.join(others)}"


def stacks() -> dict[str, list[str]]:
    """What every thread of this process is doing."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        f"{names.get(ident, '?')} {ident}": traceback.format_stack(frame)
        for ident, frame in sys._current_frames().items()
    }


def bounded(function: Callable[[], object], seconds: float = 2.0) -> None:
    """Do something that may never end, as on a disk that hangs, for so long at most."""

    def attempt() -> None:
        with suppress(Exception):
            function()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)


class Watchdog:
    """Watches one rank."""

    def __init__(
        self,
        standing: Callable[[float], Standing],
        folder: Path,
        world: int,
        *,
        after_s: float,
        say: Callable[[str], None],
        give_up: Callable[[str], None],
        patience: int = GIVE_UP_AFTER,
    ) -> None:
        self._standing, self._folder, self._world = standing, folder, world
        self._after, self._say, self._give_up = after_s, say, give_up
        self._patience = patience
        self._paces: deque[float] = deque(maxlen=50)
        self._beat = time.monotonic()
        self._beats = 0
        self._over = threading.Event()
        self.seen: list[str] = []
        """Stalls since somebody last looked."""

    def begin(self) -> None:
        self._beat = time.monotonic()
        threading.Thread(target=self._watch, name="stoker-watchdog", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def touch(self) -> None:
        """The main thread is alive, in the middle of something that takes its time."""
        self._beat = time.monotonic()

    def beat(self) -> None:
        """The main thread is alive and between two pieces of work."""
        now = time.monotonic()
        if self._beats:
            self._paces.append(now - self._beat)
        self._beat, self._beats = now, self._beats + 1

    @property
    def limit_s(self) -> float:
        """How long without a beat is a stall."""
        if self._beats < 2:
            return max(self._after, FIRST_STEP_S)
        return max(self._after, TIMES_USUAL * statistics.median(list(self._paces)))

    def _watch(self) -> None:
        reported = 0
        while not self._over.wait(POLL_S):
            still = time.monotonic() - self._beat
            if still < self.limit_s:
                reported = 0
            elif still > self.limit_s * (reported + 1):
                reported += 1
                try:
                    words = self._report(still)
                except Exception as error:  # a full disk, say: to give up matters more
                    words = f"no step for {still:.0f} s ({error})"
                # To gather words takes a while, in which a step may have come.
                came = self._over.is_set() or time.monotonic() - self._beat < still
                if reported >= self._patience and not came:
                    self._give_up(words)

    def _report(self, still_s: float) -> str:
        """Leave word of this rank's standing; name the odd one of all that did."""
        own = self._standing(still_s)
        path = self._folder / f"stall-rank{own.rank}.json"
        bounded(lambda: path.write_text(json.dumps(asdict(own))))
        self._over.wait(GATHER_S)
        found = {own.rank: own}
        bounded(lambda: found.update(self._gather(own)))
        words = f"no step for {still_s:.0f} s: {odd_one_out(list(found.values()), self._world)}"
        self.seen.append(words)
        if own.rank == 0 or self._world == 1:
            self._say(f"{words}; stacks in {self._folder}")
        return words

    def _gather(self, own: Standing) -> dict[int, Standing]:
        """Where the ranks stand that have said so lately."""
        found = {}
        for path in sorted(self._folder.glob("stall-rank*.json")):
            try:
                said: dict[str, Any] = json.loads(path.read_text())
            except (OSError, ValueError):
                continue
            if said["time"] > own.time - self.limit_s / 2:
                found[said["rank"]] = Standing(**said)
        return found
