"""Results of benchmarks with chosen figures, for tests of files and tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from stoker.plan.bench.cells import BenchCell
from stoker.plan.bench.process import CellLimits
from stoker.plan.bench.result import BenchResult, DataFacts, StoredCode
from stoker.plan.bench.rows import BenchRow, Figures, failed_row
from stoker.price.hourly import STATED, HourlyPrice
from stoker.recipe.model_file import digest_of, is_own
from stoker.recipe.recipe import Recipe

DAY = "2026-11-17T10:00:00+00:00"
IMAGES = 12_000
CELL = BenchCell("resnet18", 224, 64, "fp32", 1)
FIGURES = Figures(
    rates=(100.0, 101.0, 102.0, 103.0, 104.0),
    cold_images_per_s=80.0,
    cached_before=0.0,
    setup_s=3.0,
    first_step_s=1.5,
    warm_up_steps=5,
    warm_up_s=4.0,
    data_share=0.12,
    limit="decode",
    verdict="bound by decoding",
    memory_bytes=3_400_000_000,
    flops_per_image=1.1e10,
    peak_flops=None,
    device={"kind": "cpu", "name": "", "memory_bytes": 0},
    state={"cpu_mhz": 2500.0, "temperature_c": None, "gpus": []},
)


CODE = "def build(classes):\n    raise SystemExit\n"


def recipe_of(model: str) -> Recipe:
    return Recipe(model=model, model_code=digest_of(CODE) if is_own(model) else "")


def rates(middle: float, count: int = 5) -> tuple[float, ...]:
    """So many rates around one, 1 % apart."""
    return tuple(middle * (1 + 0.01 * (n - count // 2)) for n in range(count))


def row(middle: float = 102.0, count: int = 5, figures: Any = None, **cell: Any) -> BenchRow:
    """A row with the median `middle`; other words change its cell."""
    return BenchRow(
        cell=replace(CELL, **cell),
        outcome="ok",
        reason="",
        seconds=20.0,
        measured_at=DAY,
        figures=figures or replace(FIGURES, rates=rates(middle, count)),
    )


def failed(outcome: str, reason: str, **cell: Any) -> BenchRow:
    return failed_row(replace(CELL, **cell), outcome, reason, 9.0, DAY)


def result(
    *rows: BenchRow, machine: str = "a machine", price: float | None = 3.06, **changes: Any
) -> BenchResult:
    """A result with these rows."""
    hourly = None
    if price is not None:
        source = "--price-per-hour"
        hourly = HourlyPrice(dollars=price, kind=STATED, source=source, date="2026-11-17")
    models = sorted({one.cell.model for one in rows} | {CELL.model})
    values: dict[str, Any] = {
        "machine": machine,
        "created": DAY,
        "recipe_name": "first-look",
        "recipes": {model: recipe_of(model).values() for model in models},
        "codes": {model: StoredCode(f"/x/{model}", CODE) for model in models if is_own(model)},
        "cells": tuple(one.cell for one in rows),
        "limits": CellLimits(50, 5, 900.0, 0.0),
        "data": DataFacts("/data/photos-packed", "54288d80794a8569", IMAGES, 10, "jpeg"),
        "environment": {
            "processor": "a processor",
            "cores": 2,
            "gpus": [],
            "versions": {"torch": "2.8.0"},
        },
        "price": hourly,
        "rows": tuple(rows),
    }
    return BenchResult(**(values | changes))


def seed_table() -> list[BenchResult]:
    """Two machines, several outcomes: as in a real benchmark."""
    first = result(
        row(104, batch_size=16),
        row(131, batch_size=32),
        failed("out of memory", "a step of 64 images of 224 px (--memory-limit 16 GB)"),
        row(520, batch_size=32, ranks=4),
        row(60, batch_size=32, precision="bf16"),
        failed("timed out", "no end after 15:00: raise --time-limit", model="resnet50"),
        machine="p3.8xlarge",
        price=12.24,
    )
    second = result(
        row(20, batch_size=16),
        row(129.5, batch_size=32),
        failed("crashed", "rank 0 was killed by SIGABRT"),
        machine="p2.xlarge",
        price=0.9,
    )
    return [first, second]
