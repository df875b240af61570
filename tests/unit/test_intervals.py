"""Medians and their intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.intervals import median_of

VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("count", "low", "high", "coverage"),
    [(1, 1, 1, 0.0), (2, 1, 2, 0.5), (5, 1, 5, 0.9375), (6, 1, 6, 0.96875), (9, 2, 8, 0.9609375)],
)
def test_the_interval_ends_at_ordered_values(
    count: int, low: int, high: int, coverage: float
) -> None:
    interval = median_of([float(n) for n in range(count, 0, -1)])
    assert (interval.low, interval.high, interval.count) == (low, high, count)
    assert interval.coverage == pytest.approx(coverage)


@given(VALUES)
def test_an_interval_holds_its_median(values: list[float]) -> None:
    interval = median_of(values)
    assert interval.low <= interval.median <= interval.high
    assert interval.half >= 0
    assert interval.overlaps(interval)


@given(VALUES, VALUES)
def test_overlapping_is_mutual(one: list[float], other: list[float]) -> None:
    first, second = median_of(one), median_of(other)
    assert first.overlaps(second) == second.overlaps(first)
    assert first.overlaps(second) != (first.high < second.low or second.high < first.low)
