"""The range of a spot price in the days to come."""

from __future__ import annotations

import csv

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.price.corrections import TABLES
from stoker.price.outlook import HORIZONS, LONGEST_DAYS, price_range


def test_now_the_price_is_known() -> None:
    assert price_range(0) == (1.0, 1.0)


def test_the_horizons_are_those_of_the_table() -> None:
    with (TABLES / "spot_changes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["days"]) for row in rows] == [*HORIZONS]
    assert all(row["source"] and row["last_day"] == "2026-08-22" for row in rows)
    for row in rows[:6]:
        factors = (float(row["low"]), float(row["high"]))
        assert price_range(int(row["days"])) == pytest.approx(factors)


@given(st.floats(0, 500), st.floats(0, 500))
def test_a_longer_time_never_has_a_narrower_range(one: float, other: float) -> None:
    (low, high), (later_low, later_high) = map(price_range, sorted((one, other)))
    assert 0 < later_low <= low <= 1 <= high <= later_high


def test_beyond_the_table_the_longest_range_counts() -> None:
    assert price_range(1000) == price_range(LONGEST_DAYS)


@pytest.mark.parametrize("days", [-1.0, float("nan")])
def test_days_before_now_are_refused(days: float) -> None:
    with pytest.raises(ValueError, match="from 0 on"):
        price_range(days)
