"""How far a price moves in some days: how far an old one may be from today's.

Invariant: the factors come from AWS's history, all machines together; a longer time never has a
narrower range. Other providers' prices are assumed to move alike. docs/results/prices.md shows how
often the ranges held.

A spot price is followed in the zone that was the machine's cheapest on the first day, as a plan
does: such a price rises more often than it falls. The factors are quantiles of the changes of the
last WINDOW_DAYS of the history, as earlier ones were smaller. On-demand prices change seldom, and
then by a quarter or more: 96 % are the same after a year, and quantiles would say nothing. Their
factors are those of a normal distribution with the standard deviation of all changes.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

from stoker.price.corrections import TABLES

WINDOW_DAYS = 182
HORIZONS = (1, 2, 3, 7, 14, 30, 60, 90, 120, 180, 270, 365, 540, 730)
NORMAL_90 = 1.645
"""Standard deviations on either side of the mean that hold nine of ten cases."""


def quantile(days: int) -> float:
    """The share of a spot price's changes below its range, and above it. Chosen so that ranges made
    on each past day from the days before held in about 90 % of the days after."""
    return 0.03 if days <= 90 else 0.02 if days <= 120 else 0.01


@cache
def edge(kind: str, column: str) -> tuple[tuple[float, float], ...]:
    """The root of the days and the logarithm of the factor, for the times that have a wider range
    than all shorter ones, and for the longest time."""
    points = [(0.0, 0.0)]
    with (TABLES / "price_changes.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            log = math.log(float(row[column]))
            if row["kind"] == kind and abs(log) > abs(points[-1][1]):
                points.append((math.sqrt(float(row["days"])), log))
    return (*points, (math.sqrt(HORIZONS[-1]), points[-1][1]))


def price_range(days: float, kind: str) -> tuple[float, float]:
    """The factors between which a price lies so many days later, in 90 % of cases. `kind` is SPOT
    or ON_DEMAND of `hourly`. Between the times of the table, and beyond the longest, logarithms go
    with the root of the time. Raises ValueError for less than 0 days."""
    if not days >= 0:
        raise ValueError(f"a price range needs days from 0 on, not {days}")
    low, high = (math.exp(log_at(math.sqrt(days), edge(kind, side))) for side in ("low", "high"))
    return low, high


def log_at(root: float, points: Sequence[tuple[float, float]]) -> float:
    """The value of a line through points; beyond the last, of the line from 0 through it."""
    last, value = points[-1]
    if root >= last:
        return value * root / last
    (begin, before), (end, after) = next(pair for pair in pairwise(points) if pair[1][0] > root)
    return before + (after - before) * (root - begin) / (end - begin)
