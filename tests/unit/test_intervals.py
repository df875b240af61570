"""Medians, shares and their intervals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.intervals import median_of, share_difference, share_of

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


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662), (1, 1, 0.2065, 1.0)],
)
def test_a_share_has_wilsons_interval(hits: int, count: int, low: float, high: float) -> None:
    share = share_of(hits, count)
    assert (share.low, share.high) == pytest.approx((low, high), abs=1e-4)


def test_a_difference_has_newcombes_interval() -> None:
    """The first example of Newcombe 1998: 56 of 70 against 48 of 80."""
    change = share_difference(share_of(48, 80), share_of(56, 70))
    assert change.difference == pytest.approx(0.2)
    assert (change.low, change.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert not change.is_noise


COUNTS = st.integers(1, 10**7).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(COUNTS, COUNTS)
def test_the_interval_of_a_difference(one: tuple[int, int], other: tuple[int, int]) -> None:
    first, second = share_of(*one), share_of(*other)
    assert 0 <= first.low <= first.share <= first.high <= 1
    change, back = share_difference(first, second), share_difference(second, first)
    assert change.low <= change.difference <= change.high
    assert (back.low, back.high) == pytest.approx((-change.high, -change.low))
    assert share_difference(first, first).is_noise
