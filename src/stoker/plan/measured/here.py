"""This machine, measured for a plan: a short benchmark of the run's own stages.

Invariants: the cells are those of `stoker bench train`, each in processes of its own, and nothing
is left of them but the result. A first cell of a few steps says how many make a good measurement.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from stoker.data.dataset import Dataset
from stoker.errors import BadRequest
from stoker.plan.bench.cells import BenchCell
from stoker.plan.bench.process import CellLimits, run_cell
from stoker.plan.bench.result import BenchResult
from stoker.plan.bench.rows import BenchRow
from stoker.plan.bench.session import ModelRecipe, planned
from stoker.plan.planned import PRECISIONS
from stoker.plan.workload import Workload
from stoker.price.hourly import HourlyPrice
from stoker.recipe.recipe import Recipe
from stoker.text import shown

NAME = "this machine"
LIMIT_S = 900.0
"""Most seconds of a cell."""
FIRST = CellLimits(steps=3, repeats=1, time_limit_s=LIMIT_S, memory_gb=0.0)
REPEATS, REPEAT_S = 5, 8.0
"""Repeats of a measurement, and about how long each of them is: shared cores are slower for some
seconds and faster for others."""
LEAST_STEPS, MOST_STEPS = 3, 1000
MOST_IMAGES = 64
"""Images at once on a machine without a GPU: a larger batch is no faster there, and takes long."""


def measure_here(
    dataset: Dataset, recipe: Recipe, work: Workload, price: HourlyPrice | None
) -> BenchResult:
    """Measure training steps and an evaluation of each stage of a run. Raises BadRequest where they
    cannot be measured."""
    limits = CellLimits(MOST_STEPS, REPEATS, LIMIT_S, 0.0)
    models = {recipe.model: ModelRecipe(recipe, None)}
    result = planned(dataset, (), models, limits, (NAME, ""), price)
    result = replace(result, cells=cells_of(work, len(result.environment["gpus"])))
    for cell in result.cells:
        first = measured(dataset, cell, recipe, FIRST)
        assert first.speed is not None
        steps = ceil(REPEAT_S * first.speed.median / cell.batch_size)
        steps = min(max(steps, LEAST_STEPS), MOST_STEPS)
        result = result.with_row(
            measured(dataset, cell, recipe, CellLimits(steps, REPEATS, LIMIT_S, 0.0))
        )
    return result


def cells_of(work: Workload, gpus: int) -> tuple[BenchCell, ...]:
    """A cell for each shape of the run, on all GPUs; none comes twice."""
    cells = {
        BenchCell(
            work.model,
            stage.image_size,
            stage.batch_size if gpus else min(stage.batch_size, MOST_IMAGES),
            PRECISIONS[work.amp],
            max(gpus, 1),
        )
        for stage in work.stages
    }
    return tuple(sorted(cells))


def measured(dataset: Dataset, cell: BenchCell, recipe: Recipe, limits: CellLimits) -> BenchRow:
    """The row of a cell. Raises BadRequest where it has no figures."""
    row = run_cell(dataset.path, cell, recipe, None, limits)
    if row.figures is None:
        raise BadRequest(
            f"{shown(cell.label())} cannot be measured here: {row.outcome}: {shown(row.reason)}"
        )
    return row
