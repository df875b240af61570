"""Training from its parts: no part is slower, and a cheaper part never makes it slower."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.measure.trials.forecast import (
    COMPUTE,
    CORES,
    LOADER,
    Cost,
    fixed_s,
    for_batch,
    forecast,
    spread,
)

SECONDS = st.floats(1e-4, 1e3)
COSTS = st.builds(Cost, SECONDS, SECONDS)
SIZES = st.integers(1, 4096)
CORE_COUNTS = st.integers(1, 256)


@given(SIZES, COSTS, COSTS, CORE_COUNTS)
def test_a_step_is_as_long_as_its_slowest_part(
    size: int, compute: Cost, loader: Cost, cores: int
) -> None:
    expected = forecast(size, compute, loader, cores)
    shared = (compute.cpu_s + loader.cpu_s) / cores
    assert expected.step_s == pytest.approx(max(compute.wall_s, loader.wall_s, shared))
    assert expected.images_per_s == pytest.approx(size / expected.step_s)
    assert {ceiling.limit for ceiling in expected.ceilings} == {COMPUTE, LOADER, CORES}
    assert expected.binds.images_per_s <= expected.runner_up.images_per_s


def scaled(cost: Cost, factor: float) -> Cost:
    return Cost(cost.wall_s * factor, cost.cpu_s * factor)


@given(SIZES, COSTS, COSTS, CORE_COUNTS, st.floats(0.01, 1))
def test_nothing_cheaper_makes_it_slower(
    size: int, compute: Cost, loader: Cost, cores: int, factor: float
) -> None:
    before = forecast(size, compute, loader, cores).images_per_s
    slack = before * (1 - 1e-9)
    assert forecast(size, scaled(compute, factor), loader, cores).images_per_s >= slack
    assert forecast(size, compute, scaled(loader, factor), cores).images_per_s >= slack
    assert forecast(size, compute, loader, cores + 1).images_per_s >= slack


@pytest.mark.parametrize(
    ("compute", "loader", "limit", "fact"),
    [
        (Cost(1.0, 0.1), Cost(0.2, 0.3), COMPUTE, "forward"),
        (Cost(0.1, 0.1), Cost(1.0, 0.3), LOADER, "decoding"),
        (Cost(1.0, 2.0), Cost(0.8, 1.6), CORES, "56% of their time, loading 44%"),
    ],
)
def test_what_binds_is_named(compute: Cost, loader: Cost, limit: str, fact: str) -> None:
    expected = forecast(64, compute, loader, 2)
    assert expected.binds.limit == limit
    assert fact in expected.binds.words
    assert expected.runner_up.limit != limit


@given(SECONDS, SECONDS, SIZES)
def test_a_line_through_two_sizes_is_expected_again(
    fixed: float, an_image: float, half: int
) -> None:
    size = 2 * half
    whole, part = fixed + an_image * size, fixed + an_image * half
    expected = fixed_s(whole, part)
    assert expected == pytest.approx(fixed, rel=1e-6, abs=1e-6 * whole)
    cost = for_batch(Cost(whole, whole), size, Cost(expected, expected), 3 * size)
    assert cost.wall_s == pytest.approx(fixed + 3 * an_image * size, rel=1e-5)
    assert cost.cpu_s == cost.wall_s


@given(COSTS, COSTS, SIZES)
def test_the_size_that_was_measured_costs_what_was_measured(
    cost: Cost, fixed: Cost, size: int
) -> None:
    expected = for_batch(cost, size, fixed, size)
    assert expected.wall_s == pytest.approx(cost.wall_s)
    assert expected.cpu_s == pytest.approx(cost.cpu_s)


def test_a_fixed_cost_is_never_negative() -> None:
    assert fixed_s(1.0, 0.4) == 0.0
    assert fixed_s(1.0, 1.1) == 1.0


def test_spread_is_that_of_the_middle_half() -> None:
    assert spread([1.0] * 9) == 0.0
    assert spread([1.0, 2.0]) == 0.0
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(1.0)
    assert spread([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 99.0]) == 0.0
