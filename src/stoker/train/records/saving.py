"""When the state is saved, and the events about it.

Invariants: rank 0 saves, between two steps, after every earlier step is in the events. A save that
fails does not end a run: what was saved before is safe, and the next save is tried when it is due.
Only the last save of a run, or of an orderly stop, must succeed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stoker.errors import StokerError
from stoker.recipe.recipe import Recipe
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.save_interval import UNKNOWN_S, Interval, derive
from stoker.train.records.step_log import StepLog
from stoker.train.state import TrainState

REPORTED_CHANGE = 0.25
"""A change of the interval by less than this share is not reported."""


@dataclass
class Saves:
    """The saves of one attempt."""

    recipe: Recipe
    state: TrainState
    checkpoints: Checkpoints
    facts: dict[str, Any]
    """Facts that a user of the weights needs; they are part of each checkpoint."""
    log: StepLog
    first: bool
    """Whether this rank is the one that saves."""
    alive: Callable[[], None] = lambda: None
    """Called repeatedly while training waits for a save."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        state = self.state
        self.events = self.log.events
        self._saved = (state.position, state.evaluated) if state.position else None
        self._saved_at = self.clock()
        self._best_saved = state.best
        self._last_failure = ""
        self._blocked_s = self._reported_s = 0.0
        self.interval_s = self.recipe.checkpoint_interval or UNKNOWN_S

    @property
    def due(self) -> bool:
        """Whether the interval has passed since the last save."""
        return self.clock() - self._saved_at > self.interval_s

    def save(self, *, best: bool = False, wait: bool = False) -> None:
        """Save in the background; with `wait`, until it is done, or raise StokerError."""
        began = time.perf_counter()
        now = (self.state.position, self.state.evaluated)
        recorded = self.log.flush()
        if wait:
            self.checkpoints.join(self.alive)
            self.report()
        if self.first and now != self._saved and recorded:
            self.events.sync()
            self.checkpoints.save(self.state.snapshot(self.facts), best=best)
        self._saved, self._saved_at = now, self.clock()
        self._blocked_s = time.perf_counter() - began
        if wait:
            self.checkpoints.join(self.alive)
            self.report()
        if not recorded:
            self.failed("the events of this run cannot be written: check the free disk space")
        if wait and self.first and self._saved != now:
            raise StokerError(f"{self._last_failure}; what was saved before is safe")

    def report(self) -> None:
        """Write an event for each save that was committed, and for each that failed."""
        while self.checkpoints.failures:
            self.failed(str(self.checkpoints.failures.pop(0)))
        while self.checkpoints.finished:
            saved = self.checkpoints.finished.pop(0)
            if saved.best is not None:
                self._best_saved = saved.best
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
        """Record that a save failed: its state counts neither as saved nor as the best."""
        self.events.write("save_failed", reason=reason)
        self._saved, self._last_failure = None, reason
        self.state.best = self._best_saved

    def set_interval(self, cost_s: float) -> None:
        """Set the interval from the cost of a save; write an event if it changed noticeably."""
        fixed_s = self.recipe.checkpoint_interval
        derived = derive(cost_s, self.recipe.interruption_hours)
        interval = Interval(fixed_s, cost_s) if fixed_s else derived
        self.interval_s, before = interval.seconds, self._reported_s
        if abs(interval.seconds - before) > REPORTED_CHANGE * before:
            self._reported_s = interval.seconds
            self.events.write(
                "interval",
                seconds=round(interval.seconds, 1),
                cost_s=round(cost_s, 4),
                first=before == 0,
                words=interval.text(),
            )
