"""The range of a price in the days to come."""

from __future__ import annotations

import csv
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.price.corrections import TABLES
from stoker.price.hourly import ON_DEMAND, SPOT
from stoker.price.outlook import HORIZONS, price_range

KINDS = (SPOT, ON_DEMAND)


@pytest.mark.parametrize("kind", KINDS)
def test_now_the_price_is_known(kind: str) -> None:
    assert price_range(0, kind) == (1.0, 1.0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_times_are_those_of_the_table(kind: str) -> None:
    with (TABLES / "price_changes.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == kind]
    assert [int(row["days"]) for row in rows] == [*HORIZONS]
    assert all(row["source"] and row["last_day"] == "2026-08-22" for row in rows)
    assert all(float(row["low"]) < 1 < float(row["high"]) for row in rows)
    for row in rows[:6]:
        factors = (float(row["low"]), float(row["high"]))
        assert price_range(int(row["days"]), kind) == pytest.approx(factors)


@given(st.floats(0, 5000), st.floats(0, 5000), st.sampled_from(KINDS))
def test_a_longer_time_never_has_a_narrower_range(one: float, other: float, kind: str) -> None:
    (low, high), (later_low, later_high) = (price_range(d, kind) for d in sorted((one, other)))
    assert 0 < later_low <= low <= 1 <= high <= later_high


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("age", [0, 88, 433])
def test_every_table_has_a_wider_range_as_it_ages(age: int, kind: str) -> None:
    ranges = [price_range(age + later, kind) for later in (0, 30, 100, 400)]
    for (low, high), (later_low, later_high) in pairwise(ranges):
        assert later_high / later_low > 1.01 * high / low


@pytest.mark.parametrize("days", [-1.0, float("nan")])
def test_days_before_now_are_refused(days: float) -> None:
    with pytest.raises(ValueError, match="from 0 on"):
        price_range(days, SPOT)
