"""Means and medians, with their confidence intervals."""

from __future__ import annotations

import math
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


LEAST_COVERAGE = 0.95
"""How sure an interval of a median is, where there are enough values for that."""


@dataclass(frozen=True)
class Median:
    """A median of some values, with an interval for the true median that assumes no distribution:
    it ends at two of the values."""

    median: float
    low: float
    high: float
    count: int
    coverage: float
    """How probable it is that the interval holds the true median, if the values are independent."""

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def overlaps(self, other: Median) -> bool:
        """Whether the two intervals have a value in common."""
        return self.low <= other.high and other.low <= self.high


def median_of(values: Sequence[float]) -> Median:
    """The median of at least one value. Its interval is the narrowest pair of ordered values, as
    far from the ends as each other, that holds the median in 95 % of cases; for fewer than six
    values no pair does, and it is the smallest and the largest (five values: 93.75 %)."""
    ordered, count = sorted(values), len(values)
    inside = [outside_chance(count, skip) for skip in range((count + 1) // 2)]
    skip = max((n for n, chance in enumerate(inside) if 1 - chance >= LEAST_COVERAGE), default=0)
    low, high = ordered[skip], ordered[count - 1 - skip]
    return Median(statistics.median(ordered), low, high, count, 1 - inside[skip])


def outside_chance(count: int, skip: int) -> float:
    """The chance that the true median is outside `count` ordered values without `skip` of them on
    each side: that at most `skip` values lie on one side of it."""
    return float(min(1.0, 2 * sum(math.comb(count, n) for n in range(skip + 1)) / 2**count))


Z_95 = 1.959964
"""The normal distribution's, for a two-sided interval of 95 %."""


@dataclass(frozen=True)
class Share:
    """A share of independent answers that were right, with Wilson's interval of 95 %."""

    share: float
    low: float
    high: float
    count: int


def share_of(hits: float, count: int) -> Share:
    """The share of `hits` in at least one answer, with its interval, which stays within 0 and 1."""
    share, z2 = min(max(hits / count, 0.0), 1.0), Z_95**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = Z_95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return Share(
        share, min(max(middle - half, 0.0), share), max(min(middle + half, 1.0), share), count
    )


@dataclass(frozen=True)
class ShareDifference:
    """How much larger the second of two shares is, with an interval of 95 %."""

    difference: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether the true shares may be equal."""
        return self.low <= 0 <= self.high


def share_difference(one: Share, other: Share) -> ShareDifference:
    """The second share minus the first, with Newcombe's interval for independent answers. Answers
    to the same images vary less: for them it is wider than it had to be."""
    difference = other.share - one.share
    below = math.hypot(other.share - other.low, one.high - one.share)
    above = math.hypot(other.high - other.share, one.share - one.low)
    return ShareDifference(difference, difference - below, difference + above)
