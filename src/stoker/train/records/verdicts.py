"""Measurements during a run: probes of the machine, and verdicts on what limits training.

Invariants: every rank writes its probes to its own events. Rank 0 reads the newest events of all
ranks from the run directory and judges them by the same rules as `stoker explain` does later.
Nothing here ends a run or changes its state.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
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
from stoker.run.events import LONGEST_LINE, Events
from stoker.run.kinds import Event, event_of
from stoker.train.step import Step
from stoker.train.trials.larger_batch import larger_batch
from stoker.train.trials.memory import free_on

PROBE_S, FIRST_VERDICT_S, VERDICT_S = 5.0, 45.0, 300.0
"""Seconds between two probes, until the first verdict, and between later ones."""
STEPS_JUDGED, STEPS_READ, FEWEST_STEPS = 500, 4000, 50
"""Latest steps in a verdict; the most steps read for it, over all ranks; the fewest of a rank."""
BYTES_A_STEP = 1000
"""More bytes than the event of a step has."""
SHORT_STEP_S = 0.1
"""For steps shorter than this, a larger batch is tried: fixed costs may dominate."""
STEPS_BEFORE_TRIAL = 15
KEPT, PROBES_KEPT = ("probe", "larger_batch"), 60
"""The event kinds that this rank keeps in memory, and how many."""


@dataclass
class VerdictWatch:
    """Measures one attempt of one rank."""

    run: Run
    attempt: int
    events: Events
    step: Step

    def __post_init__(self) -> None:
        self.sampler = Sampler()
        self._probe_at = time.monotonic() + PROBE_S
        self._judge_at = time.monotonic() + FIRST_VERDICT_S
        self._step_times: deque[float] = deque(maxlen=STEPS_BEFORE_TRIAL)
        self._kept: deque[Event] = deque(maxlen=PROBES_KEPT)
        # Micro-batches mean that there is no memory for larger batches.
        self._tried = self.step.recipe.compile or self.step.micro_batch > 0

    def begin(self) -> None:
        self.sampler.begin()

    def close(self) -> None:
        self.sampler.close()

    def __call__(self) -> None:
        """Called between two steps: make the measurements that are due."""
        now, step = time.monotonic(), self.step.state.step
        if not self._tried:
            self._step_times.append(now)
            if len(self._step_times) == STEPS_BEFORE_TRIAL:
                self._tried = True
                self.quietly(self.try_larger_batch)
        if now >= self._probe_at:
            self._probe_at = now + PROBE_S
            self.quietly(self.probe)
        if now >= self._judge_at:
            self._judge_at = now + VERDICT_S
            self.judge(step)

    def quietly(self, measure: Callable[[], Verdict | None]) -> Verdict | None:
        """The result of a measurement; None if it failed, which must never end the run."""
        try:
            with self.step.spans("measuring"):
                return measure()
        except Exception as error:
            self.events.write("note", words=f"a measurement of this run failed: {error!r}")
            return None

    def try_larger_batch(self) -> None:
        """If steps are short: measure how much of a step does not depend on its images."""
        step_s = median(b - a for a, b in pairwise(self._step_times))
        if step_s < SHORT_STEP_S and self.step.loaded is not None:
            times = larger_batch(self.step, free_on(self.step.ranks.device, free_memory()))
            if times:
                self.keep("larger_batch", seconds=round(times[0], 6), larger_s=round(times[1], 6))

    def probe(self) -> None:
        self.keep("probe", **self.sampler.take())

    def keep(self, kind: str, **facts: Any) -> None:
        """Write an event and keep it in memory: the newest part of the file may not contain it."""
        step = self.step.state.step
        self.events.write(kind, step=step, **facts)
        self._kept.append({"kind": kind, "step": step, **facts})

    def judge(self, step: int) -> Verdict | None:
        """Rank 0: write and return the verdict on the latest steps; None if there is none."""
        if not self.step.ranks.first:
            return None
        self.events.flush()
        verdict = self.quietly(lambda: verdict_of(self.newest_facts(step)))
        if verdict is not None:
            self.events.write("verdict", step=step, **verdict.fields(), lines=verdict.lines())
        return verdict

    def newest_facts(self, step: int) -> Facts | None:
        """The facts about the latest steps, from the events of all ranks."""
        ranks = self.run.ranks(self.attempt)
        steps = max(min(STEPS_JUDGED, STEPS_READ // max(len(ranks), 1)), FEWEST_STEPS)
        gathered = AttemptSums(lambda number: number >= step - steps)
        for rank in ranks:
            own = rank == self.step.ranks.rank
            for event in newest(self.run.events_path(self.attempt, rank), steps):
                if not (own and event["kind"] in KEPT):
                    gathered.add(rank, event)
        for event in self._kept:
            gathered.add(self.step.ranks.rank, event)
        return gathered.facts()


def newest(path: Path, steps: int = STEPS_JUDGED) -> list[Event]:
    """The first event of a file and its newest ones; empty if the file cannot be read."""
    try:
        if not path.is_file():
            return []
        with path.open("rb") as file:
            head = file.readline(LONGEST_LINE)
            begin = max(file.seek(0, 2) - steps * BYTES_A_STEP, len(head))
            file.seek(begin)
            rest = file.read().split(b"\n")
    except OSError:
        return []
    lines = [head, *(rest if begin == len(head) else rest[1:])]
    return [event for line in lines if (event := event_of(line))]
