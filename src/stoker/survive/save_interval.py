"""How often to save: a pure function of the cost of a save and the rate of interruptions.

Saving every T seconds costs `cost / T` of the time, and an interruption loses T / 2 of work on
average. Young's rule minimises the sum: T = sqrt(2 x cost x time between interruptions). Invariant:
saves never take more than LARGEST_SHARE of the time, unless T would exceed LONGEST_S.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stoker.text import seconds

LARGEST_SHARE = 0.004
SHORTEST_S, LONGEST_S = 15.0, 3600.0
UNKNOWN_S = 30.0
"""The interval of an attempt until its first save is measured."""


@dataclass(frozen=True)
class Interval:
    """Seconds between two saves, and what a save costs."""

    seconds: float
    cost_s: float
    """Seconds that a save takes from training."""

    @property
    def share(self) -> float:
        return min(self.cost_s / self.seconds, 1.0)

    def text(self) -> str:
        return (
            f"saves every {seconds(self.seconds)}: this takes {self.share:.2%} of the time; a lost "
            f"machine costs {seconds(self.seconds / 2)} of work on average"
        )


def derive(cost_s: float, hours_between_interruptions: float) -> Interval:
    """The interval for saves that take `cost_s`."""
    young = math.sqrt(2 * cost_s * hours_between_interruptions * 3600)
    return Interval(min(max(young, cost_s / LARGEST_SHARE, SHORTEST_S), LONGEST_S), cost_s)
