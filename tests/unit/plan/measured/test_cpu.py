"""Speed on a CPU from measured cells: exact where the machine is a scaled typical one."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import BadRequest
from stoker.plan.gpu.operations import OperationCounts, count_operations
from stoker.plan.measured.cpu import TYPICAL, MeasuredCell, features, forecast_cpu, typical_costs


@cache
def counts(model: str, size: int) -> OperationCounts:
    return count_operations(model, size, 10)


def cell(model: str, size: int, batch: int, factor: float) -> MeasuredCell:
    """A step on a machine that takes `factor` times as long as the typical one."""
    seconds = factor * float(typical_costs(counts(model, size), batch).sum())
    return MeasuredCell(counts(model, size), batch, batch / seconds)


def test_work_grows_with_the_batch_except_for_weights_and_kernels() -> None:
    one, four = (features(counts("resnet9_w8", 32), batch) for batch in (4, 16))
    for kind in one:
        assert four[kind] == pytest.approx(one[kind] * (1 if kind in ("weights", "kernels") else 4))
    assert {*TYPICAL} <= {*one}


@given(factor=st.floats(0.05, 20), batch=st.integers(2, 64))
def test_a_machine_that_is_slower_throughout(factor: float, batch: int) -> None:
    cells = [cell("resnet9_w8", 32, 8, factor), cell("resnet9_w16", 64, 4, factor)]
    expected = cell("resnet9_w16", 32, batch, factor).images_per_s
    forecast = forecast_cpu(counts("resnet9_w16", 32), batch, cells)
    assert forecast.images_per_s == pytest.approx(expected)
    assert forecast.low < forecast.images_per_s < forecast.high


@given(factors=st.tuples(*[st.floats(0.2, 5)] * 3), batch=st.integers(2, 64))
def test_any_measured_cells_give_a_sound_forecast(
    factors: tuple[float, float, float], batch: int
) -> None:
    cells = [
        cell("resnet9_w8", 32, 8, factors[0]),
        cell("resnet9_w16", 64, 4, factors[1]),
        cell("resnet9_w16", 32, 32, factors[2]),
    ]
    small = forecast_cpu(counts("resnet9_w8", 64), batch, cells)
    large = forecast_cpu(counts("resnet9_w8", 64), 2 * batch, cells)
    assert 0 < small.images_per_s <= large.images_per_s * (1 + 1e-9)


def test_without_a_measured_cell_there_is_no_forecast() -> None:
    with pytest.raises(BadRequest, match="stoker bench train"):
        forecast_cpu(counts("resnet9_w8", 32), 8, [])
    with pytest.raises(BadRequest):
        forecast_cpu(counts("resnet9_w8", 32), 8, [MeasuredCell(counts("resnet9_w8", 32), 8, 0.0)])
