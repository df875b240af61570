"""When the state goes to disk, and what is said about it.

Invariants: rank 0 saves, between two steps, after every earlier step is in the events. A save that
fails does not end a run: what was saved before is safe, and the next one is tried when its time
comes; only the last save of a run, or of an orderly stop, must succeed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stoker.errors import StokerError
from stoker.recipe.recipe import Recipe
from stoker.run.events import Events
from stoker.survive.checkpoints import Checkpoints, SaveResult
from stoker.survive.save_interval import UNKNOWN_S, Interval, derive
from stoker.train.records.step_log import StepLog
from stoker.train.state import TrainState

WORTH_SAYING = 0.25
"""A change of the interval by less than this share is not said again."""


@dataclass
class Saves:
    """The saves of one attempt."""

    recipe: Recipe
    state: TrainState
    checkpoints: Checkpoints
    facts: dict[str, Any]
    events: Events
    log: StepLog
    first: bool
    """Whether this rank is the one that saves."""
    alive: Callable[[], None] = lambda: None
    """Called now and then while a save keeps everybody waiting."""

    def __post_init__(self) -> None:
        state = self.state
        self._saved = (state.position, state.evaluated) if state.position else None
        self._saved_at = time.monotonic()
        self._best_saved = state.best
        self._last_failure = ""
        self._blocked_s = 0.0
        self._said: Interval | None = None
        self.interval_s = self.recipe.checkpoint_interval or UNKNOWN_S

    @property
    def due(self) -> bool:
        """Whether enough work is at risk."""
        return time.monotonic() - self._saved_at > self.interval_s

    def save(self, *, best: bool = False, wait: bool = False) -> None:
        """Put the state on disk, in the background unless it has to wait."""
        began = time.perf_counter()
        now = (self.state.position, self.state.evaluated)
        recorded = self.log.flush()
        if wait:
            self.checkpoints.join(self.alive)
            self.report()
        if self.first and now != self._saved and recorded:
            self.events.sync()
            self.checkpoints.save(self.state.snapshot(self.facts), best=best)
        self._saved, self._saved_at = now, time.monotonic()
        self._blocked_s = time.perf_counter() - began
        if wait:
            self.checkpoints.join(self.alive)
            self.report()
        if not recorded:
            self.failed("the events of this run cannot be written: is the disk full?")
        if wait and self.first and self._saved != now:
            raise StokerError(f"{self._last_failure}; what was saved before is safe")

    def report(self) -> None:
        """An event for each save that was committed, and for each that failed."""
        while self.checkpoints.failures:
            self.failed(str(self.checkpoints.failures.pop(0)))
        while self.checkpoints.finished:
            saved = self.checkpoints.finished.pop(0)
            if saved.best is not None:
                self._best_saved = saved.best
            self.committed(saved)

    def committed(self, saved: SaveResult) -> None:
        self.events.write(
            "checkpoint",
            step=saved.step,
            position=saved.position,
            name=saved.name,
            bytes=saved.bytes,
            seconds=round(saved.seconds, 3),
            busy_s=round(saved.busy_s, 3),
            blocked_s=round(self._blocked_s, 4),
        )
        self.set_interval(self._blocked_s + saved.busy_s)

    def failed(self, reason: str) -> None:
        """What was not saved does not count as saved, nor as the best."""
        self.events.write("save_failed", reason=reason)
        self._saved, self._last_failure = None, reason
        self.state.best = self._best_saved

    def set_interval(self, cost_s: float) -> None:
        """Choose the interval by what a save costs, unless the recipe did; say it where it is
        news."""
        given = self.recipe.checkpoint_interval
        derived = derive(cost_s, self.recipe.interruption_hours)
        interval = Interval(given, cost_s) if given else derived
        self.interval_s = interval.seconds
        before = self._said.seconds if self._said else 0.0
        if abs(interval.seconds - before) > WORTH_SAYING * before:
            first = self._said is None
            self._said = interval
            self.events.write(
                "interval",
                seconds=round(interval.seconds, 1),
                cost_s=round(cost_s, 4),
                first=first,
                words=interval.text(),
            )
