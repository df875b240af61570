"""Saves are as far apart as losing work and saving it cost the least."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.survive.save_interval import LARGEST_SHARE, LONGEST_S, SHORTEST_S, Interval, derive

costs = st.floats(0, 1000)
hours = st.floats(0.01, 10_000)


@pytest.mark.parametrize(
    ("cost_s", "hours_between", "expected"),
    [
        (0.1, 4, 53.67),  # Young's rule: sqrt(2 x 0.1 x 14400)
        (0.02, 4, 24.0),
        (0.5, 4, 125.0),  # Young's 120 would take more than the largest share
        (0.001, 4, SHORTEST_S),
        (0.0, 4, SHORTEST_S),
        (1.0, 1000, 2683.28),
        (1.0, 10_000, LONGEST_S),
        (60.0, 4, LONGEST_S),
    ],
)
def test_the_interval_of_a_cost(cost_s: float, hours_between: float, expected: float) -> None:
    assert derive(cost_s, hours_between).seconds == pytest.approx(expected, abs=0.01)


@given(costs, hours)
def test_saves_take_a_small_share_unless_they_would_be_an_age_apart(
    cost_s: float, between: float
) -> None:
    interval = derive(cost_s, between)
    assert SHORTEST_S <= interval.seconds <= LONGEST_S
    assert interval.share <= LARGEST_SHARE * (1 + 1e-9) or interval.seconds == LONGEST_S
    assert interval.cost_s == cost_s


@given(st.floats(0.001, 10), hours, st.floats(0, 1))
def test_no_other_interval_within_the_limits_costs_less(
    cost_s: float, between: float, place: float
) -> None:
    def lost(seconds: float) -> float:
        return cost_s / seconds + seconds / 2 / (between * 3600)

    found = derive(cost_s, between).seconds
    shortest = max(SHORTEST_S, cost_s / LARGEST_SHARE)
    other = shortest * (LONGEST_S / shortest) ** place
    assert lost(found) <= lost(other) * (1 + 1e-9)


@given(costs, costs, hours)
def test_dearer_saves_are_no_closer(one: float, other: float, between: float) -> None:
    cheap, dear = sorted((one, other))
    assert derive(cheap, between).seconds <= derive(dear, between).seconds


@given(costs, hours, hours)
def test_machines_that_last_longer_save_no_more_often(
    cost_s: float, one: float, other: float
) -> None:
    short, long = sorted((one, other))
    assert derive(cost_s, short).seconds <= derive(cost_s, long).seconds


def test_the_text_has_the_interval_its_cost_and_the_work_at_risk() -> None:
    text = Interval(seconds=120.0, cost_s=0.3).text()
    assert all(number in text for number in ("120 s", "0.25%", "60.0 s"))
