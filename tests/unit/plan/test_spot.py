"""Expected cost on spot machines: its limits, its order, and simulated runs."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import BadRequest
from stoker.plan.spot import HOURS_BETWEEN, SpotTerms, forecast_spot
from stoker.recipe.recipe import Recipe
from stoker.survive.save_interval import derive

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "spot.py"
PLAIN = SpotTerms(hours_between=4.0, start_s=120.0, save_s=2.0)

work = st.floats(0.01, 200)
terms = st.builds(
    SpotTerms,
    hours_between=st.floats(1, 1000),
    start_s=st.floats(0, 900),
    save_s=st.floats(0, 60),
    notice=st.booleans(),
)


def test_the_default_rate_is_the_recipes() -> None:
    assert Recipe().interruption_hours == HOURS_BETWEEN


def test_the_interval_is_the_products() -> None:
    assert PLAIN.interval == derive(2.0, 4.0)
    assert replace(PLAIN, checkpoint_interval=60.0).interval.seconds == 60


@given(hours=work, notice=st.booleans())
def test_without_interruptions_only_the_work_is_left(hours: float, notice: bool) -> None:
    never = SpotTerms(hours_between=math.inf, start_s=0.0, save_s=0.0, notice=notice)
    forecast = forecast_spot(hours, never)
    assert forecast.machine_h == pytest.approx(hours)
    assert (forecast.interruptions, forecast.redone_h) == (0, 0)
    assert forecast.low_h == forecast.high_h == pytest.approx(hours)


def test_without_interruptions_saves_and_one_start_are_added() -> None:
    never = SpotTerms(hours_between=math.inf, start_s=60.0, save_s=2.0)
    forecast = forecast_spot(1.0, never)
    saves = 3600 // derive(2.0, 1e9).seconds + 2
    assert forecast.machine_h * 3600 == pytest.approx(3660 + 2 * saves)


@given(hours=work, more=st.floats(1.05, 3), spot=terms)
def test_more_work_takes_longer(hours: float, more: float, spot: SpotTerms) -> None:
    less, longer = forecast_spot(hours, spot), forecast_spot(hours * more, spot)
    assert longer.machine_h > less.machine_h
    assert longer.interruptions >= less.interruptions


@given(hours=work, more=st.floats(1.05, 10), spot=terms)
def test_a_higher_rate_takes_longer(hours: float, more: float, spot: SpotTerms) -> None:
    """With saves that stay as they are: a higher rate alone also changes the interval."""
    fixed = replace(spot, checkpoint_interval=300.0)
    calm = forecast_spot(hours, replace(fixed, hours_between=spot.hours_between * more))
    rough = forecast_spot(hours, fixed)
    # With a notice a short run may save less often by its regular saves: at most one save.
    assert rough.machine_h >= calm.machine_h - spot.save_s / 3600 - 1e-9
    assert rough.interruptions > calm.interruptions


@given(hours=work, spot=terms)
def test_the_parts_make_the_whole(hours: float, spot: SpotTerms) -> None:
    forecast = forecast_spot(hours, spot)
    parts = forecast.work_h + forecast.saving_h + forecast.redone_h + forecast.starting_h
    assert forecast.machine_h == pytest.approx(parts)
    assert forecast.redone_h >= -1e-9
    assert forecast.low_h <= forecast.high_h
    assert forecast.machine_h <= forecast.wall_h
    low, high = forecast.dollar_range(2.0, machines=3)
    assert low <= high
    assert forecast.dollars(2.0, machines=3) == pytest.approx(6 * forecast.machine_h)


def test_a_wait_for_a_machine_is_not_billed() -> None:
    waiting = forecast_spot(10.0, replace(PLAIN, wait_s=1800.0))
    forecast = forecast_spot(10.0, PLAIN)
    assert waiting.machine_h == forecast.machine_h
    assert waiting.wall_h == pytest.approx(forecast.wall_h + 0.5 * forecast.interruptions)


def test_two_machines_are_lost_twice_as_often() -> None:
    pair = forecast_spot(10.0, replace(PLAIN, machines=2, checkpoint_interval=120.0))
    half = forecast_spot(10.0, replace(PLAIN, hours_between=2.0, checkpoint_interval=120.0))
    assert pair.machine_h == half.machine_h


@pytest.mark.parametrize(
    ("hours", "wrong"),
    [
        (-1.0, PLAIN),
        (1.0, replace(PLAIN, start_s=-1.0)),
        (1.0, replace(PLAIN, hours_between=0.0)),
        (1.0, replace(PLAIN, machines=0)),
    ],
)
def test_impossible_terms(hours: float, wrong: SpotTerms) -> None:
    with pytest.raises(ValueError):
        forecast_spot(hours, wrong)


def test_machines_that_hardly_last_are_refused() -> None:
    with pytest.raises(BadRequest, match="choose machines that last longer"):
        forecast_spot(1.0, SpotTerms(hours_between=0.01, start_s=600.0, save_s=1.0))


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spot_benchmark", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("notice", [False, True])
@pytest.mark.parametrize(("hours", "between", "save_s"), [(6.0, 1.0, 5.0), (12.0, 4.0, 30.0)])
def test_simulated_runs_cost_as_much(
    benchmark: ModuleType, hours: float, between: float, save_s: float, notice: bool
) -> None:
    """2,000 seeded runs: their mean lies within 2 % and most of them in the stated range."""
    spot = SpotTerms(hours_between=between, start_s=300.0, save_s=save_s, notice=notice)
    forecast = forecast_spot(hours, spot)
    runs = benchmark.simulate(3600 * hours, spot, 2000, 1)
    machine_h = runs.machine_s / 3600
    assert forecast.machine_h == pytest.approx(machine_h.mean(), rel=0.02)
    assert forecast.interruptions == pytest.approx(runs.lost.mean(), rel=0.05)
    inside = ((machine_h > forecast.low_h - 1e-6) & (machine_h < forecast.high_h + 1e-6)).mean()
    assert inside >= 0.85
