"""Means and their confidence intervals."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t for a two-sided interval of 95 %, with 1, 2, ... degrees of freedom."""
T_95_MANY = 1.96


@dataclass(frozen=True)
class Mean:
    """A mean of some values; `half` is half the width of its 95 % interval, None for one value."""

    mean: float
    half: float | None
    count: int

    @property
    def low(self) -> float:
        return self.mean - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.half or 0.0)


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of at least one value, with its interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Mean(mean, None, len(values))
    freedom = len(values) - 1
    t = T_95[freedom - 1] if freedom <= len(T_95) else T_95_MANY
    return Mean(mean, t * statistics.stdev(values) / len(values) ** 0.5, len(values))
