"""How often to save: a pure function of what a save costs and how often machines are lost.

Saving every T seconds costs `cost / T` of the time, and an interruption loses T / 2 of work.
Young's rule makes the sum of both smallest: T = sqrt(2 x cost x time between interruptions).
Beyond that, saving never takes more than a small share of the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LARGEST_SHARE = 0.004
"""The share of the time that saves may take."""
SHORTEST_S, LONGEST_S = 15.0, 3600.0
UNKNOWN_S = 30.0
"""The first interval of an attempt that has not seen a save yet."""


@dataclass(frozen=True)
class Interval:
    """Seconds of work at risk between two saves, and what that costs."""

    seconds: float
    cost_s: float
    """What a save takes away from training."""

    @property
    def share(self) -> float:
        return min(self.cost_s / self.seconds, 1.0)

    def words(self) -> str:
        return (
            f"saves every {seconds(self.seconds)}: costs {self.share:.2%} of the time, "
            f"a lost machine costs {seconds(self.seconds / 2)} of work on average"
        )


def seconds(number: float) -> str:
    """Seconds as one says them."""
    return f"{number:.0f} s" if number >= 10 else f"{number:.2g} s"


def derive(cost_s: float, hours_between_interruptions: float) -> Interval:
    """The interval for saves of this cost."""
    young = math.sqrt(2 * cost_s * hours_between_interruptions * 3600)
    wanted = max(young, cost_s / LARGEST_SHARE, SHORTEST_S)
    return Interval(min(wanted, LONGEST_S), cost_s)
