"""A run on measured machines: exact rows, forecasts from others, calibration of a GPU."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from bench_results import FIGURES, result, row
from stoker.errors import BadRequest
from stoker.plan.bench.result import BenchResult
from stoker.plan.bench.rows import BenchRow
from stoker.plan.choice import require_within
from stoker.plan.estimate import START_S
from stoker.plan.gpu.known import gpu_named
from stoker.plan.gpu.operations import count_operations
from stoker.plan.machines import PlannedRun, RentalTerms, plan_on
from stoker.plan.measured.cpu import EXPECTED_ERROR
from stoker.plan.measured.machine import (
    OTHER_BATCH,
    SAME_CELL,
    calibrations,
    offer_of,
    plan_measured,
    plan_on_measured,
)
from stoker.plan.probe import LoadingProbe
from stoker.plan.ranges import FigureRange
from stoker.plan.workload import workload_of
from stoker.recipe.recipe import Recipe
from stoker.show.plan.measured import here_lines, measured_lines

TERMS = RentalTerms(
    hours_between=4.0,
    start_s=START_S,
    save_s=FigureRange(0.01, 0.02, 0.05),
    begins=date(2026, 8, 22),
)
RECIPE = Recipe(model="resnet9_w16", image_size=64, batch_size=32, epochs=4)
A100 = {"kind": "cuda", "name": "NVIDIA A100-SXM4-40GB", "memory_bytes": 40 << 30}


@pytest.fixture(scope="module")
def run() -> PlannedRun:
    return planned(RECIPE)


def planned(recipe: Recipe, precision: str = "fp32") -> PlannedRun:
    work = workload_of(recipe, 3200, 320, 10, parameters=400_000)
    return PlannedRun(
        work=work,
        counts={64: count_operations(recipe.model, 64, 10)},
        precision=precision,
        channels_last=True,
        micro_batch=0,
        probe=LoadingProbe({64: 2000.0}, "measured", 2),
    )


def measured(middle: float, **cell: object) -> BenchRow:
    shape = {"model": "resnet9_w16", "image_size": 64, "batch_size": 32}
    return row(middle, **(shape | cell))


def test_a_measured_cell_sets_the_rate_and_the_price_the_dollars(run: PlannedRun) -> None:
    plan = plan_on_measured(run, result(measured(100), measured(10, batch_size=8)), TERMS)
    assert plan.estimate and plan.hours and plan.on_demand
    assert plan.estimate.images_per_s.middle == pytest.approx(100, rel=0.001)
    assert plan.estimate.training_s.middle == pytest.approx(128, rel=0.001)
    assert plan.estimate.training_s.width == pytest.approx(SAME_CELL)
    assert plan.on_demand.middle == pytest.approx(3.06 * plan.hours.middle)
    assert plan.spot is None


def test_the_evaluation_is_the_measured_one(run: PlannedRun) -> None:
    fast = replace(FIGURES, evaluation_images_per_s=320.0)
    plan = plan_on_measured(run, result(measured(100, figures=fast)), TERMS)
    assert plan.estimate
    assert plan.estimate.evaluating_s.middle == pytest.approx(4)


def test_an_uneven_measurement_has_a_wide_range(run: PlannedRun) -> None:
    wild = replace(FIGURES, rates=(50.0, 70.0, 100.0, 130.0, 150.0))
    plan = plan_on_measured(run, result(measured(0, figures=wild)), TERMS)
    assert plan.estimate
    assert plan.estimate.training_s.width == pytest.approx(0.5)


def test_the_nearest_batch_counts_where_the_own_one_is_missing(run: PlannedRun) -> None:
    rows = result(measured(60, batch_size=4), measured(90, batch_size=24))
    plan = plan_on_measured(run, rows, TERMS)
    assert plan.estimate
    assert plan.estimate.images_per_s.middle == pytest.approx(90, rel=0.001)
    assert plan.estimate.training_s.width == pytest.approx(OTHER_BATCH)


def test_a_cpu_is_forecast_from_rows_of_other_models(run: PlannedRun) -> None:
    slow = plan_on_measured(run, result(measured(20, model="resnet18", image_size=96)), TERMS)
    fast = plan_on_measured(run, result(measured(40, model="resnet18", image_size=96)), TERMS)
    assert slow.estimate and fast.estimate
    ratio = fast.estimate.images_per_s.middle / slow.estimate.images_per_s.middle
    assert 1.9 < ratio <= 2.1
    assert slow.estimate.training_s.high > slow.estimate.training_s.middle * (1 + EXPECTED_ERROR)


def gpu_result(*rows: BenchRow, gpus: int = 1) -> BenchResult:
    facts = {"processor": "a processor", "cores": 8, "gpus": [{"name": A100["name"]}] * gpus}
    return result(*rows, environment=facts)


def on_gpu(middle: float, waiting: float = 0.0, **cell: object) -> BenchRow:
    rates = tuple(middle * (1 + 0.01 * n) for n in (-2, -1, 0, 1, 2))
    figures = replace(FIGURES, rates=rates, data_share=waiting, device=A100)
    return measured(middle, figures=figures, **cell)


def test_a_gpu_is_calibrated_by_the_row_of_the_users_own(run: PlannedRun) -> None:
    file = gpu_result(on_gpu(5000), on_gpu(9000, model="resnet18"), on_gpu(9999, waiting=0.5))
    found = calibrations(run, [file])
    assert {key: one.images_per_s for key, one in found.items()} == {"A100-40GB": 5000}
    calibrated = replace(run, calibrations=found)
    gpu = replace(offer_of(file), gpu="A100-40GB", vcpus=12.0)
    plan = plan_on(calibrated, gpu, gpu_named("A100-40GB"))
    assert plan.estimate and "calibrated by resnet9_w16" in plan.source
    assert plan.estimate.images_per_s.middle == pytest.approx(5000, rel=0.01)


def test_a_gpu_without_the_own_row_calibrates_and_is_no_machine_itself(run: PlannedRun) -> None:
    assert plan_measured(run, [gpu_result(on_gpu(9000, model="resnet18"))], TERMS) == []
    with pytest.raises(BadRequest, match=r"no row of resnet9_w16 at 64 px, fp32, with 8 ranks"):
        plan_measured(run, [gpu_result(on_gpu(5000, ranks=2), gpus=8)], TERMS)


def test_a_file_without_a_fitting_row_is_refused(run: PlannedRun) -> None:
    with pytest.raises(BadRequest, match=r"no row of resnet9_w16 at 64 px, fp32"):
        plan_measured(run, [result(measured(10, precision="bf16"))], TERMS)


def test_a_run_that_may_take_or_cost_more_is_refused(run: PlannedRun) -> None:
    plan = plan_on_measured(run, result(measured(100)), TERMS)
    assert plan.hours and plan.on_demand
    require_within(plan, plan.hours.high, plan.on_demand.high)
    with pytest.raises(BadRequest, match="more than --deadline"):
        require_within(plan, plan.hours.middle, None)
    with pytest.raises(BadRequest, match="more than --budget"):
        require_within(plan, 9.0, plan.on_demand.middle)
    with pytest.raises(BadRequest, match="--budget needs a price"):
        require_within(replace(plan, on_demand=None), 9.0, 1.0)


@pytest.mark.parametrize("gpus", [None, 3, "A100", [None, "x"], {}])
def test_what_a_stranger_states_as_gpus_is_no_gpu(run: PlannedRun, gpus: object) -> None:
    plan = plan_on_measured(run, result(measured(100), environment={"gpus": gpus}), TERMS)
    assert plan.offer.gpu == "CPU"


@pytest.mark.parametrize("model", ["./evil.py:build", "hf_hub:someone/model", "no_such_model"])
def test_a_model_that_a_stranger_names_is_not_built(run: PlannedRun, model: str) -> None:
    known = measured(20, model="resnet18", image_size=96)
    alone = plan_on_measured(run, result(known), TERMS)
    beside = plan_on_measured(run, result(measured(9, model=model), known), TERMS)
    assert alone.estimate and beside.estimate
    assert alone.estimate.images_per_s == beside.estimate.images_per_s
    with pytest.raises(BadRequest, match="no training step was measured"):
        plan_on_measured(run, result(measured(9, model=model)), TERMS)
    gpu = gpu_result(on_gpu(9000, model=model))
    assert calibrations(run, [gpu]) == {}


def test_lines_say_time_rate_and_dollars(run: PlannedRun) -> None:
    fast = replace(FIGURES, rates=(100.0,) * 5, evaluation_images_per_s=320.0)
    file = result(measured(100, figures=fast), machine="a\x1b[2J machine", price=None)
    plan = plan_on_measured(run, file, TERMS)
    lines = here_lines(plan, file)
    assert (
        lines[0] == "measured: resnet9_w16 64 px batch 32 fp32, 1 rank: 100 images/s (100 to 100)"
    )
    assert "at 100 images/s (85 to 122), slowed by decode" in lines[1]
    assert lines[1].endswith("no price: --price-per-hour states one")
    assert lines[2].startswith("that is: training 2:08, evaluating 4 s, start and saves ")
    every = (*lines, *measured_lines([plan], [file]))
    assert not any("\x1b" in line for line in every)
    assert "was measured on another set (photos-packed)" in every[-1]
