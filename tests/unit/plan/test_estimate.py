"""Ranges, rates and the time of a run: no faster part makes it longer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.plan.estimate import COMPUTE, DATA, EXCHANGE, MachineRates, estimate
from stoker.plan.frontier import frontier
from stoker.plan.ranges import FigureRange
from stoker.plan.workload import Workload, WorkStage

WORK = Workload(
    model="resnet18",
    amp="off",
    classes=10,
    train_images=1000,
    epochs=3,
    stages=(
        WorkStage(image_size=32, batch_size=10, steps=100),
        WorkStage(image_size=64, batch_size=10, steps=200),
    ),
    evaluations=3,
    evaluation_images=100,
    evaluation_size=64,
    parameters=10,
    gradient_bytes=40,
    checkpoint_bytes=80,
    data_bytes=0,
)
rates = st.floats(0.1, 1e5)


def machine(compute: float, loading: float, efficiency: float = 1.0) -> MachineRates:
    return MachineRates(
        compute=(FigureRange.around(compute, 0.1),) * 2,
        loading=(FigureRange.around(loading, 0.2),) * 2,
        efficiency=efficiency,
    )


def test_the_slowest_resource_sets_the_rate() -> None:
    forecast = estimate(WORK, machine(100.0, 1000.0))
    assert forecast.binds == COMPUTE
    assert forecast.images_per_s.middle == pytest.approx(100)
    assert forecast.training_s.middle == pytest.approx(30)
    assert forecast.training_s.low == pytest.approx(3000 / 110)
    assert forecast.evaluating_s.middle == pytest.approx(300 / 300)
    assert estimate(WORK, machine(100.0, 50.0)).binds == DATA
    assert estimate(WORK, machine(100.0, 500.0, efficiency=0.7)).binds == EXCHANGE


@given(rates, rates, st.floats(1, 10))
def test_a_faster_part_never_makes_a_run_longer(
    compute: float, loading: float, factor: float
) -> None:
    slow = estimate(WORK, machine(compute, loading)).work_s
    for faster in (machine(compute * factor, loading), machine(compute, loading * factor)):
        quick = estimate(WORK, faster).work_s
        assert quick.low <= slow.low * 1.000001
        assert quick.high <= slow.high * 1.000001


@given(st.lists(st.floats(0, 1e6), min_size=3, max_size=3), rates)
def test_ranges_stay_in_order(values: list[float], factor: float) -> None:
    value = FigureRange(*sorted(values))
    for other in (value + value, value * factor, value * FigureRange.around(factor, 0.5)):
        assert 0 <= other.low <= other.middle <= other.high


def test_what_is_no_range_is_refused() -> None:
    for values in ((2, 1, 3), (1, 2, float("inf")), (-1, 0, 1), (1, float("nan"), 2)):
        with pytest.raises(ValueError, match="no range"):
            FigureRange(*values)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), max_size=30))
def test_no_option_beats_one_on_the_frontier(options: list[tuple[int, int]]) -> None:
    best = frontier(options, lambda option: option)
    for option in options:
        assert any(edge[0] <= option[0] and edge[1] <= option[1] for edge in best)
    for edge in best:
        others = [option for option in options if option != edge]
        assert not any(other[0] <= edge[0] and other[1] <= edge[1] for other in others)
