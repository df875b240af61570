"""How far a spot price moves in the days to come.

Invariant: the factors are quantiles of the changes that AWS's zones had in the last WINDOW_DAYS of
the history, all machines together. Earlier changes were smaller: a range from all of them held in
83 % of cases. The quantiles are 4 % and 96 %, chosen so that ranges made on each past day from the
days before held in 90 % of the days after (docs/results/prices.md). Other providers' prices are
assumed to move alike.
"""

from __future__ import annotations

import csv
import math
from functools import cache

from stoker.price.corrections import TABLES

WINDOW_DAYS = 182
LOW, HIGH = 0.04, 0.96
HORIZONS = (1, 2, 3, 7, 14, 30, 60, 90, 180, 365)
LONGEST_DAYS = HORIZONS[-1]


@cache
def changes() -> tuple[tuple[float, float, float], ...]:
    """Days, and the logarithms of the low and the high factor, from 0 days on. A longer time never
    has a narrower range, though the newest changes over 90 days happened to be smaller than those
    over 60."""
    rows = [(0.0, 0.0, 0.0)]
    with (TABLES / "spot_changes.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            low, high = math.log(float(row["low"])), math.log(float(row["high"]))
            rows.append((float(row["days"]), min(low, rows[-1][1]), max(high, rows[-1][2])))
    return tuple(rows)


def price_range(days: float) -> tuple[float, float]:
    """The factors between which a zone's spot price lies so many days later, in 90 % of cases.
    Between two horizons of the table it goes with the root of the time. More days than LONGEST_DAYS
    have the range of LONGEST_DAYS. Raises ValueError for less than 0 days."""
    if not days >= 0:
        raise ValueError(f"a price range needs days from 0 on, not {days}")
    days = min(days, float(LONGEST_DAYS))
    rows = changes()
    at = next(number for number, row in enumerate(rows) if row[0] >= days)
    after, before = rows[at], rows[max(at - 1, 0)]
    width = math.sqrt(after[0]) - math.sqrt(before[0])
    share = (math.sqrt(days) - math.sqrt(before[0])) / width if width else 0.0
    low, high = (before[n] + share * (after[n] - before[n]) for n in (1, 2))
    return math.exp(low), math.exp(high)
