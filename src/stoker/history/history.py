"""The history of a run, and a follower that keeps it up to date.

Invariants: files are read, none is written, and no lock is held, so looking can neither slow nor
break a run. Each event is read once, most of them as rows of a summary: the next look costs what
was written since. Attempts are merged: of steps that were made twice, the later ones count.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from stoker.history.curves import TrainingPoint, TrainingSums, point_of, recent_points
from stoker.history.ledger import TimeLedger
from stoker.history.usage import Usage, usage_of
from stoker.run.directory import Run
from stoker.run.kinds import Event
from stoker.run.listing import RUNNING, dollars_until, state_of
from stoker.run.rows import NEVER, time_of
from stoker.run.summaries import RowReader

INCIDENTS = ("stall", "faults", "save_failed", "peer_lost", "skipped", "note")
"""Kinds of events that tell of trouble, or of what was noticed."""
MOST_INCIDENTS = 1000
RATE_S = 60.0
"""Seconds over which the current speed is taken."""
TAIL = 1 << 18
"""Bytes of the latest events of a rank that is not read as a whole: some hundred steps."""


@dataclass
class RankHistory:
    """One rank of the newest attempt."""

    rank: int
    host: str = ""
    steps: int = 0
    own_s: float = 0.0
    """Seconds of these steps until the gradients were computed."""
    recent: deque[Event] = field(default_factory=deque)
    """Its latest rows of steps: about a minute."""

    def take(self, row: Event) -> None:
        self.steps += row["count"]
        self.own_s += sum(row["own_s"])
        self.recent.append(row)
        while time_of(row) - time_of(self.recent[0]) > RATE_S:
            self.recent.popleft()

    @property
    def recent_own_s(self) -> float | None:
        """The mean seconds of a step, until its gradients were computed, in the last minute."""
        steps = sum(row["count"] for row in self.recent)
        return sum(sum(row["own_s"]) for row in self.recent) / steps if steps else None


@dataclass
class AttemptHistory:
    """One attempt of a run, from its first event to its last."""

    number: int
    start: Event | None = None
    """Its `attempt` event; None where it ended before training."""
    end: Event | None = None
    """Its `end` event; None while it runs, or where it was killed."""
    began: float | None = None
    """When its first and its last event were written, in seconds since 1970."""
    last: float | None = None
    steps: int = 0
    redone: int = 0
    """Steps that a later attempt repeated."""

    def take(self, row: Event) -> None:
        if at := time_of(row):
            self.began = at if self.began is None else min(self.began, at)
            self.last = at if self.last is None else max(self.last, at)
        kind = row["kind"]
        if kind == "attempt" and self.start is None:
            self.start = row
        elif kind == "end":
            self.end = row
        elif kind == "steps":
            self.steps += row["count"]
            self.redone += row["count"] if row["redone"] else 0


@dataclass
class RunHistory:
    """What is known of a run."""

    run: Run
    lost_from: dict[int, int]
    """For each attempt the position from which on a later one repeated its steps."""
    attempts: dict[int, AttemptHistory] = field(default_factory=dict)
    points: list[TrainingPoint] = field(default_factory=list)
    """The rows of rank 0 that count."""
    sums: TrainingSums = field(default_factory=TrainingSums)
    ledger: TimeLedger = field(default_factory=TimeLedger)
    ranks: dict[int, RankHistory] = field(default_factory=dict)
    """The ranks of the newest attempt."""
    usage: dict[str, list[Usage]] = field(default_factory=dict)
    """What each machine did, by the name of its host, from one rank of it."""
    verdicts: list[Event] = field(default_factory=list)
    checkpoints: list[Event] = field(default_factory=list)
    incidents: deque[Event] = field(default_factory=lambda: deque(maxlen=MOST_INCIDENTS))
    _evaluations: dict[int, Event] = field(default_factory=dict)
    _hosts: dict[tuple[int, int], tuple[str, bool]] = field(default_factory=dict)

    def take(self, attempt: int, rank: int, row: Event, has_losses: bool = True) -> None:
        """Add a row or another event of a rank, whose losses may be left out of the curve."""
        kind, lost_from = row["kind"], self.lost_from.get(attempt, NEVER)
        row = {**row, "attempt": attempt, "rank": rank}
        if kind == "steps":
            row["redone"] = row["position"] >= lost_from
        if kind in ("machine", "attempt"):
            host = row["environment"].get("host", "")
            is_first = row.get("local_rank", rank % row["local_world"]) == 0
            self._hosts[attempt, rank] = host, is_first
        if kind == "steps" and not row["redone"] and has_losses:
            self.sums.take(row)
        if kind == "steps" and attempt == self.newest:
            own = self.ranks.setdefault(rank, RankHistory(rank))
            own.host = self._hosts.get((attempt, rank), ("", True))[0]
            own.take(row)
        elif kind == "probes":
            if self.needs_probes(attempt, rank):
                host, _ = self._hosts.get((attempt, rank), ("", True))
                self.usage.setdefault(host, []).append(usage_of(row))
        elif kind in INCIDENTS:
            self.incidents.append(row)
        if rank == 0:
            self._take_first(attempt, row, lost_from)

    def needs_probes(self, attempt: int, rank: int) -> bool:
        """Whether the probes of a rank count: those of the first rank of each machine do."""
        return self._hosts.get((attempt, rank), ("", rank == 0))[1]

    def _take_first(self, attempt: int, row: Event, lost_from: int) -> None:
        """Add what only rank 0 says."""
        kind = row["kind"]
        self.attempts.setdefault(attempt, AttemptHistory(attempt)).take(row)
        self.ledger.take(row)
        if kind == "steps" and not row["redone"]:
            self.points.append(point_of(row, attempt, self.ledger.total_s))
        elif kind == "evaluation" and row["position"] <= lost_from:
            self._evaluations[row["position"]] = {**row, "seconds_used": self.ledger.total_s}
        elif kind == "verdict":
            self.verdicts.append(row)
        elif kind == "checkpoint":
            self.checkpoints.append(row)

    @cached_property
    def newest(self) -> int:
        """The number of the newest attempt; 0 where there is none."""
        return max(self.lost_from, default=0)

    @cached_property
    def record(self) -> dict[str, Any]:
        """What is in run.json. Raises BadRequest where it is missing or damaged."""
        return self.run.record

    @property
    def evaluations(self) -> list[Event]:
        """The evaluations that count, in their order, each with the `seconds_used` so far."""
        return [self._evaluations[position] for position in sorted(self._evaluations)]

    @property
    def best(self) -> Event | None:
        return best_of(self.evaluations)

    @property
    def start(self) -> Event | None:
        """The newest `attempt` event."""
        starts = [one.start for _, one in sorted(self.attempts.items()) if one.start]
        return starts[-1] if starts else None

    @property
    def end(self) -> Event | None:
        """The `end` event of the newest attempt; None while it runs, or where it was killed."""
        return self.attempts[self.newest].end if self.newest in self.attempts else None

    @property
    def last(self) -> float | None:
        """When the last event of rank 0 was written, in seconds since 1970."""
        return max((one.last for one in self.attempts.values() if one.last), default=None)

    def state(self, now: float | None = None) -> str:
        """`new`, `running`, `stopped`, `killed`, `finished` or `failed`: see run/listing.py."""
        return state_of(self.run, self.end, self.last, time.time() if now is None else now)

    @property
    def steps(self) -> int:
        """Steps that are done."""
        return self.points[-1].step if self.points else 0

    @property
    def images_per_s(self) -> float | None:
        """Images a second of all ranks in the last minute of training."""
        recent = recent_points(self.points, RATE_S)
        rates = [(p.images_per_s, p.step_s) for p in recent if p.images_per_s]
        weight = sum(step_s for _, step_s in rates)
        return sum(rate * step_s for rate, step_s in rates) / weight if weight else None

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the last step, at the speed of the last minutes with saves and evaluations;
        None where it is not known."""
        start, recent = self.start, recent_points(self.points, 10 * RATE_S)
        if start is None or not start["steps"] or not recent:
            return None
        seconds = sum(sum(point.parts.values()) for point in recent)
        steps = sum(point.count for point in recent)
        left = max(start["steps"] - self.steps, 0)
        return left * seconds / steps if steps else None

    def dollars(self, now: float | None = None) -> float | None:
        """What the run has cost so far; None where no price is known. While it runs, up to now."""
        now = time.time() if now is None else now
        return dollars_until(self.start, now if self.state(now) == RUNNING else self.last)

    @property
    def per_hour(self) -> float | None:
        """Dollars an hour of all machines together; None where no price is known."""
        return self.start.get("per_hour") if self.start else None


class RunFollower:
    """Reads a run, and whatever is added to it. Of ranks that are not included, it reads what they
    do in the newest attempt, from their latest steps on: enough for their speed and machines."""

    def __init__(self, run: Run, ranks: Callable[[int], bool] = lambda rank: True) -> None:
        self.run, self._includes = run, ranks
        self._readers: dict[tuple[int, int], RowReader] = {}
        self._history = RunHistory(run, {})

    def look(self) -> RunHistory:
        """The history up to now. The same object is brought up to date, until a new attempt begins
        and the attempts are merged again. Never raises for what is in the events."""
        lost_from = self.run.lost_from()
        is_new = lost_from != self._history.lost_from
        if is_new:
            self._readers, self._history = {}, RunHistory(self.run, lost_from)
        history = self._history
        attempts = sorted(lost_from) if is_new else [history.newest]
        for attempt in filter(None, attempts):
            for rank in self.run.ranks(attempt):
                is_whole = self._includes(rank)
                if is_whole or attempt == history.newest:
                    for row in self._rows(attempt, rank, None if is_whole else TAIL):
                        history.take(attempt, rank, row, has_losses=is_whole)
        return history

    def _rows(self, attempt: int, rank: int, tail: int | None) -> Iterator[Event]:
        if not (reader := self._readers.get((attempt, rank))):
            path = self.run.events_path(attempt, rank)
            reader = self._readers[attempt, rank] = RowReader(path, self.run.damage, tail=tail)
        needs_probes = partial(self._history.needs_probes, attempt, rank)
        return reader.read(self._history.lost_from[attempt], needs_probes)


def best_of(evaluations: Iterable[Event]) -> Event | None:
    """The evaluation with the best accuracy; of equal ones the first, though the checkpoint `best`
    is that of the latest. None for none."""
    return max(evaluations, key=lambda event: event["top1"] / event["images"], default=None)


def history_of(run: Run) -> RunHistory:
    """Everything that is known of a run up to now."""
    return RunFollower(run).look()
