"""A budget of dollars or hours for a whole run, and the stop before it is passed.

Invariants: a limit counts all attempts of a run. Before work whose length was measured would pass
it, a stop is requested early enough to finish a step, save, and end the processes. What is not
measured yet counts with a stated guess. A run without room for that is not started.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass, field

from stoker.errors import BadRequest
from stoker.measure.spans import APART
from stoker.price.hourly import HourlyPrice
from stoker.price.ledger.cost import RunCost, cost_of
from stoker.price.ledger.spending import Spending
from stoker.run.directory import Run
from stoker.run.kinds import Event
from stoker.survive.stopping import StopRequest
from stoker.text import clock

BUDGET = "budget: "
"""How the reason of every stop for a budget begins."""
ELSEWHERE = f"{BUDGET}rank 0 counts that it is spent"
STARTING_S, SAVING_S, STEP_S = 10.0, 3.0, 0.5
"""Guesses for what no attempt has measured yet."""
ENDING_S = 4.0
"""From the last save until the processes are gone."""
MEETING_S = 1.0
"""Until the ranks meet, which they do about twice a second."""
MARGIN = 1.5
"""Measured times may be longer the next time."""
LONGEST_LOOK_S = 2.0
STEPS_KEPT = 100


class BudgetSpent(BadRequest):
    """A budget leaves no time for more training; everything is saved."""


@dataclass(frozen=True)
class BudgetLimits:
    """What a run may cost and how long it may take, over all of its attempts; None: no limit."""

    dollars: float | None = None
    hours: float | None = None

    def __bool__(self) -> bool:
        return self.dollars is not None or self.hours is not None

    def seconds_left(self, dollars: float, hours: float, per_hour: float) -> float:
        """Seconds until the first limit is passed."""
        left = [math.inf]
        if self.hours is not None:
            left.append((self.hours - hours) * 3600)
        if self.dollars is not None and per_hour > 0:
            left.append((self.dollars - dollars) / per_hour * 3600)
        if self.dollars is not None and dollars > self.dollars:
            left.append(0.0)
        return min(left)

    def reason(self, dollars: float, hours: float, per_hour: float) -> str:
        """Which limit is reached, and what to do."""
        by_hours = BudgetLimits(hours=self.hours).seconds_left(dollars, hours, per_hour)
        by_dollars = BudgetLimits(dollars=self.dollars).seconds_left(dollars, hours, per_hour)
        if self.dollars is not None and by_dollars <= by_hours:
            return (
                f"{BUDGET}${dollars:,.2f} of ${self.dollars:,.2f} spent; raise --max-dollars "
                "to go on"
            )
        return (
            f"{BUDGET}{clock(hours * 3600)} of {clock((self.hours or 0) * 3600)} used; raise "
            "--max-hours to go on"
        )


NO_LIMITS = BudgetLimits()


@dataclass
class LongestTimes:
    """How long the slow parts of a run have taken, at most."""

    starting_s: float = STARTING_S
    saving_s: float | None = None
    evaluating_s: float = 0.0
    compiling_s: float = 0.0
    steps_s: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))

    def take(self, event: Event) -> None:
        """Learn from an event of rank 0, or from a row of its steps."""
        kind = event["kind"]
        if kind == "attempt":
            self.starting_s = max(self.starting_s, event["startup_s"])
        elif kind == "checkpoint":
            self.saved(event.get("seconds", 0.0) + event.get("blocked_s", 0.0))
        elif kind == "evaluation":
            self.evaluating_s = max(self.evaluating_s, event.get("seconds", 0.0))
        elif kind in ("step", "steps"):
            parts = event["parts"]
            own_s = sum(s for part, s in parts.items() if part not in APART)
            self.steps_s.append(event.get("longest_s", own_s))
            self.compiling_s = max(self.compiling_s, parts.get("compile", 0.0))

    def saved(self, seconds: float) -> None:
        self.saving_s = max(self.saving_s or 0.0, seconds)

    @property
    def leaving_s(self) -> float:
        """What it takes to leave from the middle of training: a step, a save under way and one
        more, and the end of the processes."""
        step_s = max(self.steps_s.copy(), default=STEP_S)  # another thread appends
        saving_s = SAVING_S if self.saving_s is None else self.saving_s
        return MARGIN * (2 * step_s + 2 * saving_s) + MEETING_S + ENDING_S


def is_budget_stop(reason: str | None) -> bool:
    return bool(reason) and str(reason).startswith(BUDGET)


def raise_budget_stop(reason: str | None) -> None:
    """Raise BudgetSpent where a command was stopped in order for this reason, and it is a budget:
    what starts a stopped command again must not start this one."""
    if is_budget_stop(reason):
        raise BudgetSpent(f"stopped, everything is saved; {reason}")


def longest_times(run: Run) -> LongestTimes:
    """What the earlier attempts of a run measured."""
    times = LongestTimes()
    for event in run.rows():
        times.take(event)
    return times


def require_room(limits: BudgetLimits, cost: RunCost, per_hour: float, times: LongestTimes) -> None:
    """Raise BudgetSpent where a run could not start, train and save before a limit is passed."""
    needed_s = times.starting_s + times.leaving_s
    left_s = limits.seconds_left(cost.total, cost.hours, per_hour)
    if left_s < needed_s:
        reason = limits.reason(cost.total, cost.hours, per_hour)
        needed = f"starting, a step and a save take about {needed_s:.0f} s"
        price = f" (${needed_s / 3600 * per_hour:,.2f})" if per_hour else ""
        raise BudgetSpent(f"{reason}: {needed}{price}, and {max(left_s, 0):.0f} s are left")


def check_budget(limits: BudgetLimits, run: Run, price: HourlyPrice | None) -> None:
    """Raise BadRequest where a budget has no price to count with, or leaves no room for a start on
    this machine."""
    if not limits:
        return
    if limits.dollars is not None and price is None:
        raise BadRequest(
            "--max-dollars needs the price of this machine, which is not known: give it with "
            "--price-per-hour"
        )
    cost = cost_of(run) if run.exists else RunCost([], [])
    times = longest_times(run) if run.exists else LongestTimes()
    require_room(limits, cost, price.dollars if price else 0.0, times)


class BudgetWatch:
    """Requests a stop in time, from a thread of its own, so that it also ends what does not ask."""

    def __init__(
        self, limits: BudgetLimits, spending: Spending, times: LongestTimes, stop: StopRequest
    ) -> None:
        self.limits, self.spending, self.times, self._stop = limits, spending, times, stop
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stoker-budget", daemon=True)

    def begin(self) -> None:
        """Watch from here on. Not while an attempt starts: there is nothing to save yet, and how
        long a save takes may not be measured."""
        if not self._thread.ident:
            self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.ident:
            self._thread.join()

    def seconds_left(self, work_s: float = 0.0) -> float:
        """Seconds until it is time to leave, if work of some length is still to come."""
        spent = self.spending
        left_s = self.limits.seconds_left(spent.dollars, spent.hours, spent.per_hour)
        return left_s - self.times.leaving_s - MARGIN * work_s

    def require(self, work_s: float = 0.0) -> None:
        """Request a stop where work of some length would pass a limit."""
        if self.seconds_left(work_s) <= 0:
            spent = self.spending
            self._stop.request(self.limits.reason(spent.dollars, spent.hours, spent.per_hour))

    def _watch(self) -> None:
        while not self._stop:
            self.require()
            if self._over.wait(min(max(self.seconds_left(), 0.01), LONGEST_LOOK_S)):
                return
