"""How a run stands, read from outside while it trains.

Invariants: files are read, none is written. Each event is read once: a look costs what rank 0 wrote
since the last one. Only what training itself writes counts as progress: measurements come from
threads that go on while training hangs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.run.directory import Run
from stoker.run.kinds import Event
from stoker.run.listing import RUNNING, dollars_until, state_of
from stoker.run.progress import KINDS
from stoker.run.rows import time_of
from stoker.run.summaries import RowReader

LONG = ("attempt", "evaluating")
"""Events after which the next one may take long: the first step, and an evaluation."""
MOST_STALLS = 100


@dataclass(frozen=True)
class RunStatus:
    """What rank 0 has written up to now."""

    state: str
    """One of `listing.STATES`."""
    attempt: int = 0
    step: int = 0
    """Steps that are done."""
    best: float | None = None
    """Best top-1 share."""
    dollars: float | None = None
    """What the run has cost; None where no price is known."""
    progress: int = 0
    """Events of the newest attempt that are progress."""
    is_long: bool = False
    """Whether what is under way may take many minutes."""
    last: float | None = None
    """When the last event was written, in seconds since 1970."""
    end: Event | None = None
    """The `end` event of the newest attempt."""
    stalls: tuple[Event, ...] = ()
    """The `stall` events of the newest attempt."""


@dataclass
class _Attempt:
    number: int
    reader: RowReader
    facts: dict[str, Any] = field(default_factory=dict)
    start: Event | None = None
    stalls: list[Event] = field(default_factory=list)


class StatusReader:
    """Reads the newest attempt of a run, from where the last look ended."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._newest: _Attempt | None = None
        self._best: float | None = None

    def look(self, now: float | None = None) -> RunStatus:
        """The status now. Never raises for what is in the events."""
        now = time.time() if now is None else now
        try:
            number = max(self._run.attempts(), default=0)
        except OSError:
            number = self._newest.number if self._newest else 0
        if number and (self._newest is None or self._newest.number != number):
            if self._newest is None:
                self._take_earlier(number)
            path = self._run.events_path(number, 0)
            self._newest = _Attempt(number, RowReader(path, self._run.damage))
        if self._newest is None:
            return RunStatus(state_of(self._run, None, None, now))
        for row in self._newest.reader.read():
            self._take(self._newest, row)
        status = RunStatus("", number, stalls=tuple(self._newest.stalls), **self._newest.facts)
        state = state_of(self._run, status.end, status.last, now)
        dollars = dollars_until(self._newest.start, now if state == RUNNING else status.last)
        return replace(status, state=state, best=self._best, dollars=dollars)

    def _take_earlier(self, newest: int) -> None:
        """Take the best accuracy of attempts that were over before the first look."""
        for number in self._run.attempts():
            for row in self._run.attempt_rows(number) if number < newest else ():
                self._take_best(row)

    def _take_best(self, row: Event) -> None:
        if row["kind"] == "evaluation":
            share = row["top1"] / row["images"]
            if 0 <= share <= 1:
                self._best = max(share, self._best or 0.0)

    def _take(self, attempt: _Attempt, row: Event) -> None:
        kind, facts = row["kind"], attempt.facts
        self._take_best(row)
        if at := time_of(row):
            facts["last"] = max(at, facts.get("last") or 0.0)
        if kind == "stall":
            attempt.stalls = [*attempt.stalls, row][-MOST_STALLS:]
        if kind == "steps" or kind in KINDS:
            facts["progress"] = facts.get("progress", 0) + row.get("count", 1)
            facts["is_long"] = kind in LONG
        if kind == "attempt":
            attempt.start, facts["step"] = row, row["step"]
        elif kind == "steps":
            facts["step"] = row["last"] + 1
        elif kind == "end":
            facts["end"] = row
