"""What a run says about itself while it goes on: probes, and what binds it.

Invariants: every rank leaves its probes in its own events; rank 0 reads the newest events of all
from the run directory and judges them, by the same rules as whoever reads the run later. Nothing
here ends a run, and nothing touches its state.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from stoker.host.sampler import Sampler
from stoker.measure.environment import free_memory
from stoker.measure.facts import Facts
from stoker.measure.facts_from_events import AttemptSums
from stoker.measure.verdict import Verdict, verdict_of
from stoker.run.directory import Run
from stoker.run.events import Event, Events, is_event
from stoker.train.step import Step
from stoker.train.trials.larger_batch import larger_batch
from stoker.train.trials.memory import free_on

PROBE_S = 5.0
"""Between two probes on record."""
FIRST_VERDICT_S, VERDICT_S = 45.0, 300.0
"""When the first verdict comes, and how long it is to the next."""
STEPS_JUDGED = 500
"""The latest steps that a verdict in mid-run is about."""
STEPS_READ, FEWEST_STEPS = 4000, 50
"""Of all ranks together, so that a verdict takes no longer where there are many; of each."""
BYTES_A_STEP = 1000
"""More than an event of a step has."""
SHORT_STEP_S = 0.1
"""Steps that are quicker than that may be too quick for the work around them."""
STEPS_BEFORE_TRIAL = 15
KEPT, PROBES_KEPT = ("probe", "larger_batch"), 60
"""What this rank keeps at hand of its own events, beside the newest steps."""


@dataclass
class VerdictWatch:
    """Watches one attempt of one rank."""

    run: Run
    attempt: int
    events: Events
    step: Step

    def __post_init__(self) -> None:
        self.sampler = Sampler()
        self._probe_at = time.monotonic() + PROBE_S
        self._judge_at = time.monotonic() + FIRST_VERDICT_S
        self._beats: deque[float] = deque(maxlen=STEPS_BEFORE_TRIAL)
        # Whoever cuts batches into pieces has no memory for larger ones.
        self._kept: deque[Event] = deque(maxlen=PROBES_KEPT)
        self._tried = self.step.recipe.compile or self.step.micro_batch > 0

    def begin(self) -> None:
        self.sampler.begin()

    def close(self) -> None:
        self.sampler.close()

    def __call__(self) -> None:
        """Between two steps: see whether it is time for something."""
        now, step = time.monotonic(), self.step.state.step
        if not self._tried:
            self._beats.append(now)
            if len(self._beats) == STEPS_BEFORE_TRIAL:
                self._tried = True
                self.quietly(self.try_larger_batch)
        if now >= self._probe_at:
            self._probe_at = now + PROBE_S
            self.quietly(self.probe)
        if now >= self._judge_at:
            self._judge_at = now + VERDICT_S
            self.judge(step)

    def quietly(self, look: Callable[[], Verdict | None]) -> Verdict | None:
        """Whatever goes wrong while a run is looked at must never end it."""
        try:
            with self.step.spans("measuring"):
                return look()
        except Exception as error:
            self.events.write("note", words=f"this run could not be looked at: {error!r}")
            return None

    def try_larger_batch(self) -> None:
        """Where steps are quick: how much of one does not depend on its images."""
        pace = median(b - a for a, b in pairwise(self._beats))
        if pace < SHORT_STEP_S and self.step.loaded is not None:
            found = larger_batch(self.step, free_on(self.step.ranks.device, free_memory()))
            if found:
                took = {"seconds": round(found[0], 6), "larger_s": round(found[1], 6)}
                self.keep("larger_batch", **took)

    def probe(self) -> None:
        self.keep("probe", **self.sampler.take())

    def keep(self, kind: str, **facts: Any) -> None:
        """Put an event on record, and at hand: steps may crowd it out of the newest ones."""
        step = self.step.state.step
        self.events.write(kind, step=step, **facts)
        self._kept.append({"kind": kind, "step": step, **facts})

    def judge(self, step: int) -> Verdict | None:
        """What binds the latest steps; rank 0 says it for all."""
        if not self.step.ranks.first:
            return None
        self.events.flush()
        found = self.quietly(lambda: verdict_of(self.newest_facts(step)))
        if found is not None:
            self.events.write("verdict", step=step, **found.fields(), lines=found.lines())
        return found

    def newest_facts(self, step: int) -> Facts | None:
        """What the events of all ranks say about the latest steps."""
        ranks = self.run.ranks(self.attempt)
        steps = max(min(STEPS_JUDGED, STEPS_READ // max(len(ranks), 1)), FEWEST_STEPS)
        seen = AttemptSums(lambda number: number >= step - steps)
        for rank in ranks:
            own = rank == self.step.ranks.rank
            for event in newest(self.run.events_path(self.attempt, rank), steps):
                if not (own and event["kind"] in KEPT):
                    seen.add(rank, event)
        for event in self._kept:
            seen.add(self.step.ranks.rank, event)
        return seen.facts()


def newest(path: Path, steps: int = STEPS_JUDGED) -> list[Event]:
    """How an attempt began, and its newest events: as many as a verdict needs."""
    try:
        with path.open("rb") as file:
            head = file.readline()
            size = file.seek(0, 2)
            begin = max(size - steps * BYTES_A_STEP, len(head))
            file.seek(begin)
            rest = file.read().split(b"\n")
    except OSError:
        return []
    found = []
    for line in [head, *(rest if begin == len(head) else rest[1:])]:
        with suppress(ValueError):
            found.append(json.loads(line))
    return [event for event in found if is_event(event)]
