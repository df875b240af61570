"""Medians and spreads of measured values, computed in one way by all benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], digits: int = 3) -> list[float]:
    """Median, smallest and largest value, rounded."""
    return [
        round(figure, digits) for figure in (statistics.median(values), min(values), max(values))
    ]


def spread_text(values: Sequence[float], digits: int) -> str:
    """`median (smallest to largest)`, or `-` without values."""
    if not values:
        return "-"
    middle, least, most = (f"{figure:.{digits}f}" for figure in spread(values, digits))
    return f"{middle} ({least} to {most})"


def quartiles(values: Sequence[float], digits: int) -> dict[str, float]:
    """The lower quartile, the median and the upper quartile, rounded, by their names."""
    names = ("quarter", "median", "three_quarters")
    figures = statistics.quantiles(values, n=4)
    return {name: round(figure, digits) for name, figure in zip(names, figures, strict=True)}


T_95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for a two-sided interval of 95 %, with 1, 2, ... degrees of freedom."""


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half the width of its 95 % interval. Needs 2 to 10 values."""
    t = T_95[len(values) - 2]
    return statistics.mean(values), t * statistics.stdev(values) / len(values) ** 0.5
