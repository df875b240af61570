"""A figure with its range: the middle, and the bounds that hold in nine of ten cases.

Invariants: 0 <= low <= middle <= high, all finite. Bounds are combined as if their errors came
together: low with low, high with high. That is right for figures that share a cause, such as the
stages of one run on one GPU, and too wide for others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class FigureRange:
    """A figure and the range around it."""

    low: float
    middle: float
    high: float

    def __post_init__(self) -> None:
        ordered = 0 <= self.low <= self.middle <= self.high
        if not ordered or not math.isfinite(self.high):
            raise ValueError(f"no range: {self.low}, {self.middle}, {self.high}")

    @classmethod
    def exactly(cls, value: float) -> FigureRange:
        return cls(value, value, value)

    @classmethod
    def around(cls, value: float, share: float) -> FigureRange:
        """A value that is known to within a share of itself, which is below 1."""
        return cls(value * (1 - share), value, value * (1 + share))

    def __add__(self, other: FigureRange) -> FigureRange:
        return FigureRange(self.low + other.low, self.middle + other.middle, self.high + other.high)

    def __mul__(self, other: FigureRange | float) -> FigureRange:
        factor = other if isinstance(other, FigureRange) else FigureRange.exactly(other)
        return FigureRange(
            self.low * factor.low, self.middle * factor.middle, self.high * factor.high
        )

    def time_of(self, amount: float) -> FigureRange:
        """The time that an amount takes at this rate: the highest rate gives the shortest time.
        Raises ZeroDivisionError for a rate that may be 0."""
        return FigureRange(amount / self.high, amount / self.middle, amount / self.low)

    def at_most(self, other: FigureRange) -> FigureRange:
        """The smaller of two rates, bound by bound."""
        return FigureRange(
            min(self.low, other.low), min(self.middle, other.middle), min(self.high, other.high)
        )

    @property
    def width(self) -> float:
        """The larger distance from the middle to a bound, as a share of the middle."""
        if not self.middle:
            return 0.0
        return max(self.high - self.middle, self.middle - self.low) / self.middle
