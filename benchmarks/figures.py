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
