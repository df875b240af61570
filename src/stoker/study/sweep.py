"""A sweep: one run for each point of a grid or of a random search, and the table of their results.

Invariants: a cell trains a complete recipe, which is frozen when the sweep is planned: later edits
of a recipe file change nothing. Points that differ in their seed alone are replicates of one row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stoker.errors import BadRequest
from stoker.fleet.grid.cell import Cell, Plan
from stoker.fleet.grid.directory import DONE, Grid, Status, own_digest
from stoker.intervals import Mean, mean_of
from stoker.recipe.recipe import Recipe
from stoker.study.frozen import COMMAND, training_meaning
from stoker.study.results import TrainingResult, training_result
from stoker.study.search import REPLICATE, Point

ENOUGH = 3
"""Replicates from which an interval says something."""


@dataclass
class Sweep:
    """The plan of a sweep, and which cells train which point: one, or one for each rung."""

    plan: Plan = field(default_factory=Plan)
    cells: dict[str, Point] = field(default_factory=dict)
    """The cells that train from the start."""
    later: dict[str, int] = field(default_factory=dict)
    """The cells that go on with the run of another one, and their rung."""


Trial = tuple[Point, Recipe]
"""A point, and the whole recipe that it makes."""


def trials_of(points: Sequence[Point], recipe_at: Callable[[Point], Recipe]) -> list[Trial]:
    """The points with their recipes. Raises BadRequest, which names a point that makes none."""
    trials = []
    for point in points:
        try:
            trials.append((point, recipe_at(point)))
        except BadRequest as error:
            raise BadRequest(f"{label_of(point)}: {error}") from error
    return trials


def plan_sweep(trials: Sequence[Trial], fingerprint: str, threads: int) -> Sweep:
    """One cell for each trial."""
    sweep, sources = Sweep(), own_digest()
    for point, recipe in trials:
        meaning = training_meaning(recipe, fingerprint, threads)
        cell = sweep.plan.add(Cell(label_of(point), COMMAND, meaning, (), sources))
        sweep.cells.setdefault(cell, point)
    return sweep


def label_of(point: Point) -> str:
    return " ".join(f"{key}={text_of(value)}" for key, value in point.items()) or "the recipe"


def text_of(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def settings_of(point: Point) -> Point:
    """A point without its seed."""
    return {key: value for key, value in point.items() if key != REPLICATE}


@dataclass(frozen=True)
class SweepRow:
    """One combination of settings, with its replicates."""

    settings: Point
    top1: Mean | None
    """Share of right answers in the last evaluation; None where no replicate is done."""
    epoch: float
    """The epoch of that evaluation, the latest of the replicates'."""
    rung: int
    """How often the settings went on with halving."""
    done: int
    planned: int
    cells: tuple[str, ...]
    """The cells with the last evaluations of the replicates that are done."""


def rows(sweep: Sweep, grid: Grid, status: Status) -> list[SweepRow]:
    """The rows of a sweep, best first; those that did not go on with halving, or have no result,
    last."""
    newest: dict[str, LastResult] = {}
    for cell in [*sweep.cells, *sorted(sweep.later, key=sweep.later.__getitem__)]:
        if status.states[cell] == DONE:
            result = training_result(grid, cell)
            newest[result.began] = LastResult(sweep.later.get(cell, 0), cell, result)
    groups: dict[str, list[str]] = {}
    for cell, point in sweep.cells.items():
        groups.setdefault(label_of(settings_of(point)), []).append(cell)
    table = [row_of(sweep, cells, newest) for cells in groups.values()]
    return sorted(table, key=lambda row: (-row.rung, -row.top1.mean if row.top1 else 1.0))


@dataclass(frozen=True)
class LastResult:
    """The latest result of a run."""

    rung: int
    cell: str
    result: TrainingResult


def row_of(sweep: Sweep, cells: list[str], newest: Mapping[str, LastResult]) -> SweepRow:
    """The row of the cells in which the replicates of some settings began."""
    done = [newest[cell] for cell in cells if cell in newest]
    rung = max((each.rung for each in done), default=0)
    last = [each for each in done if each.rung == rung]
    top1 = [each.result.share for each in last]
    return SweepRow(
        settings_of(sweep.cells[cells[0]]),
        mean_of(top1) if top1 else None,
        max((each.result.epoch for each in last), default=0.0),
        rung,
        len(last),
        len(cells),
        tuple(each.cell for each in last),
    )


def is_settled(table: Sequence[SweepRow]) -> bool:
    """Whether the best row is apart from the second: their intervals do not overlap."""
    if len(table) < 2:
        return False
    first, second = table[0].top1, table[1].top1
    if not first or not second or first.half is None or second.half is None:
        return False
    return first.low > second.high
