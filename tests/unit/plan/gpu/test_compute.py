"""Forecasts of throughput: ranges around their middle, sensible changes, the published rows."""

from __future__ import annotations

import csv
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from golden import check_golden
from stoker.plan.gpu.compute import MeasuredRow, forecast_compute, tables
from stoker.plan.gpu.known import UnknownGpu, gpus
from stoker.plan.gpu.operations import OperationCounts, count_operations
from stoker.plan.gpu.terms import TERMS, term_seconds

THROUGHPUT = Path(__file__).parents[5] / "shared" / "data" / "gpu_throughput.csv"
NO_BASIS = {"P100", "P6000", "K80"}
SAMPLE = 12


@cache
def counts(model: str = "resnet18", size: int = 64) -> OperationCounts:
    return count_operations(model, size, 1000)


@given(
    gpu=some.sampled_from(sorted(set(gpus()) - NO_BASIS)),
    batch=some.integers(1, 2048),
    precision=some.sampled_from(("fp16", "bf16", "tf32", "fp32")),
    channels_last=some.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_a_range_contains_its_middle(
    gpu: str, batch: int, precision: str, channels_last: bool
) -> None:
    forecast = forecast_compute(counts(), gpu, batch, precision, channels_last)
    assert 0 < forecast.low <= forecast.images_per_s <= forecast.high
    assert forecast.source


@pytest.mark.parametrize("gpu", sorted(NO_BASIS))
def test_a_gpu_without_a_basis_is_unknown(gpu: str) -> None:
    with pytest.raises(UnknownGpu, match="no basis"):
        forecast_compute(counts(), gpu, 64, "fp16", True)


def test_larger_images_are_slower_on_every_gpu() -> None:
    large = counts("resnet18", 160)
    for gpu in set(gpus()) - NO_BASIS:
        small = forecast_compute(counts(), gpu, 128, "fp16", True)
        assert small.images_per_s > forecast_compute(large, gpu, 128, "fp16", True).images_per_s


def test_a_gpu_that_was_never_measured_has_a_wider_range() -> None:
    def width(gpu: str) -> float:
        forecast = forecast_compute(counts("resnet50", 224), gpu, 192, "fp16", True)
        return forecast.high / forecast.low

    assert width("RTX3090") < width("A100-80GB") < width("L4")


def test_the_source_says_what_a_forecast_stands_on() -> None:
    def source(gpu: str) -> str:
        return forecast_compute(counts(), gpu, 64, "fp16", True).source

    assert "by specification" in source("L4")
    assert "2,470 images/s" in source("A100-80GB")
    check_golden("plan_gpu_compute", [source(gpu) for gpu in ("RTX3090", "V100", "H100", "L4")])


def test_a_measured_row_calibrates() -> None:
    row = MeasuredRow(counts=counts(), batch=64, images_per_s=1000.0)
    same = forecast_compute(counts(), "L4", 64, "fp16", True, measured=row)
    assert same.images_per_s == pytest.approx(1000.0)
    other = counts("resnet18", 96)
    plain = forecast_compute(other, "L4", 64, "fp16", True)
    table = forecast_compute(counts(), "L4", 64, "fp16", True)
    calibrated = forecast_compute(other, "L4", 64, "fp16", True, measured=row)
    assert calibrated.images_per_s / plain.images_per_s == pytest.approx(1000 / table.images_per_s)
    assert calibrated.high / calibrated.low < plain.high / plain.low


def test_a_gpu_may_be_unknown_to_the_table_but_measured() -> None:
    row = MeasuredRow(counts=counts(), batch=64, images_per_s=100.0)
    forecast = forecast_compute(counts(), "K80", 64, "fp32", True, measured=row)
    assert forecast.images_per_s == pytest.approx(100.0)


def test_terms_are_finite_and_never_negative() -> None:
    for gpu in gpus().values():
        for precision in ("fp16", "fp32", "tf32"):
            terms = term_seconds(counts(), gpu, 32, precision)
            assert terms.shape == (len(TERMS),)
            assert np.isfinite(terms).all()
            assert (terms >= 0).all()


def test_every_figure_of_the_tables_has_bounds_and_a_source() -> None:
    for layout in ("nhwc", "nchw"):
        assert set(tables()[layout]) == set(TERMS)
        for low, middle, high in tables()[layout].values():
            assert 0 <= low <= middle <= high
    assert "2022-07-27" in tables()["source"]
    for precisions in tables()["factor"].values():
        for row in precisions.values():
            assert 0.1 < row["factor"] < 10
            assert row["source"]
            assert row["basis"] in tables()["spread"]


@pytest.mark.skipif(not THROUGHPUT.is_file(), reason="needs ../shared/data/gpu_throughput.csv")
def test_a_share_of_the_published_rows_is_forecast() -> None:
    """The rows were fitted too: held-out errors come from benchmarks/plan_fit.py."""
    with THROUGHPUT.open(newline="") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["kind"], row["gpu"]) == ("train", "RTX3090") and int(row["px"]) <= 256
        ]
    errors, inside = [], []
    for row in random.Random(0).sample(rows, SAMPLE):
        try:
            model = count_operations(row["model"], int(row["px"]), 1000)
        except Exception:  # names that this version of timm does not have
            continue
        if abs(model.parameters / 1e6 - float(row["params_m"])) > 0.05 * float(row["params_m"]):
            continue
        batch, last = int(float(row["batch_per_gpu"])), row["layout"] == "nhwc"
        forecast = forecast_compute(model, "RTX3090", batch, "fp16", last)
        measured = float(row["img_per_s"])
        errors.append(abs(forecast.images_per_s / measured - 1))
        inside.append(forecast.low <= measured <= forecast.high)
    assert len(errors) >= SAMPLE // 2
    assert np.median(errors) <= 0.06
    assert np.mean(inside) >= 0.7
