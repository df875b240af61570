"""What lost machines cost: saves, redone work and restarts, event by event and by a formula.

A run loses a machine hosts x rate times a day, and every loss ends the attempt of all hosts. An
attempt begins with a restart, saves first after UNKNOWN_S and then as often as the product derives
from the cost of a save and the time between losses. A save blocks training for its cost, or for a
part of it while the rest is written beside training. A loss takes back the work since the last save
that was complete.

Invariants: the interval is the product's (`stoker.survive.save_interval.derive`). A simulation is a
function of its terms and a seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from stoker.survive.save_interval import UNKNOWN_S, derive

LOSSES = 20_000
"""Losses in a simulation: its shares are exact to about a hundredth of themselves."""


@dataclass(frozen=True)
class Timing:
    """How an attempt goes, in seconds."""

    start_s: float
    """From the loss to the first step."""
    first_s: float
    """Work until the first save begins."""
    later_s: float
    """Work between the end of a save's block and the next save."""
    blocked_s: float
    """For which a save blocks training."""
    commit_s: float = 0.0
    """From the end of that until the save is complete."""


@dataclass
class Spent:
    """Seconds of all attempts."""

    attempts: int = 0
    total_s: float = 0.0
    start_s: float = 0.0
    blocked_s: float = 0.0
    redone_s: float = 0.0

    @property
    def kept_s(self) -> float:
        """Work that counts."""
        return self.total_s - self.start_s - self.blocked_s - self.redone_s

    @property
    def lost_share(self) -> float:
        return 1 - self.kept_s / self.total_s


def replay(lifetimes_s: Iterable[float], timing: Timing) -> Spent:
    """Attempts that each end with a loss after so many seconds."""
    spent, every = Spent(), timing.later_s + timing.blocked_s
    for life_s in lifetimes_s:
        trained_s = max(life_s - timing.start_s, 0.0)
        begun = count_until(trained_s - timing.first_s, every)
        ended_s = trained_s - timing.first_s - timing.blocked_s - timing.commit_s
        complete = count_until(ended_s, every)
        last_s = (begun - 1) * every + timing.first_s if begun else 0.0
        blocked_s = 0.0
        if begun:
            blocked_s = (begun - 1) * timing.blocked_s
            blocked_s += min(trained_s - last_s, timing.blocked_s)
        saved_s = timing.first_s + (complete - 1) * timing.later_s if complete else 0.0
        spent.attempts += 1
        spent.total_s += life_s
        spent.start_s += min(life_s, timing.start_s)
        spent.blocked_s += blocked_s
        spent.redone_s += trained_s - blocked_s - saved_s
    return spent


def count_until(seconds: float, every_s: float) -> int:
    """How many of the moments 0, every, 2 x every ... have come after so many seconds."""
    return 0 if seconds < 0 else math.floor(seconds / every_s) + 1


@dataclass(frozen=True)
class Losses:
    """What losses at a rate do to a run."""

    hours_between: float
    interval_s: float
    saves: float
    redone: float
    restarts: float
    """Shares of the time, simulated."""
    formula: float
    """The share of all three, by the formula."""

    @property
    def share(self) -> float:
        return self.saves + self.redone + self.restarts


def simulate(hosts: int, per_host_day: float, save_s: float, restart_s: float, seed: int) -> Losses:
    """A run that loses machines at random moments. Training waits for the whole of a save."""
    hours = 24 / (hosts * per_host_day)
    interval = derive(save_s, hours).seconds
    lifetimes = np.random.default_rng(seed).exponential(3600 * hours, LOSSES)
    spent = replay(lifetimes.tolist(), Timing(restart_s, UNKNOWN_S, interval, save_s))
    return Losses(
        hours,
        interval,
        spent.blocked_s / spent.total_s,
        spent.redone_s / spent.total_s,
        spent.start_s / spent.total_s,
        formula_share(hours, interval, save_s, restart_s),
    )


def formula_share(hours: float, interval_s: float, save_s: float, restart_s: float) -> float:
    """Saves cost their share of the time, and a loss costs a restart and half an interval."""
    between_s = 3600 * hours
    saves = save_s / (interval_s + save_s)
    return min(saves + (restart_s + (interval_s + save_s) / 2) / between_s, 1.0)
