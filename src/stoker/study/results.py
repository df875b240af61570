"""The results of cells, as they are read: others may have written into the folder of a grid.

Invariant: what is returned here has the fields that a study uses, with sensible values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from stoker.errors import BadRequest
from stoker.fleet.grid.cell import ID, Cell, Plan
from stoker.fleet.grid.directory import DAMAGED, DONE, Grid, Status


@dataclass(frozen=True)
class TrainingResult:
    """What a study uses of the result of a run."""

    images: int
    top1: int
    epoch: float
    began: str
    """The cell in which the run began."""

    @property
    def share(self) -> float:
        return self.top1 / self.images


def study_status(grid: Grid, plan: Plan) -> Status:
    """What has become of the cells of a study. A damaged result is no result."""
    status = grid.status(plan)
    damaged_cells = {
        name: DAMAGED
        for name, state in status.states.items()
        if state == DONE and not is_sound(grid, plan.cells[name])
    }
    return replace(status, states={**status.states, **damaged_cells})


def is_sound(grid: Grid, cell: Cell) -> bool:
    """Whether the result of a cell is one that a study can use."""
    do = cell.meaning.get("do")
    if do in ("choose", "pack", "finish_pack") or (do == "dense" and "until" in cell.meaning):
        return isinstance(grid.result(cell.id), dict)
    with suppress(BadRequest):
        return bool(training_result(grid, cell.id))
    return False


def training_result(grid: Grid, cell: str) -> TrainingResult:
    """The result of a cell that trains. Raises BadRequest where it is damaged."""
    result = grid.result(cell)
    values: dict[str, Any] = result if isinstance(result, dict) else {}
    images, top1, epoch = (values.get(name) for name in ("images", "top1", "epoch"))
    began = values.get("began", cell)
    if (
        type(images) is int
        and type(top1) is int
        and 0 <= top1 <= images != 0
        and isinstance(epoch, int | float)
        and math.isfinite(epoch)
        and is_id(began)
    ):
        return TrainingResult(images, top1, float(epoch), began)
    raise damaged(grid, cell)


def chosen_runs(grid: Grid, cell: str, place: int, replicate: int) -> tuple[str, str]:
    """The cell whose run goes on at a place of a choice, and the one in which it began. Raises
    BadRequest where the choice is damaged."""
    try:
        chosen = grid.result(cell)["chosen"][place]
        before, began = (chosen[name][replicate] for name in ("cells", "began"))
    except (KeyError, IndexError, TypeError) as error:
        raise damaged(grid, cell) from error
    if not (is_id(before) and is_id(began)):
        raise damaged(grid, cell)
    return before, began


def is_id(value: Any) -> bool:
    return isinstance(value, str) and ID.fullmatch(value) is not None


def damaged(grid: Grid, cell: str) -> BadRequest:
    path = grid.cell_path(cell) / "result.json"
    return BadRequest(f"{path} is damaged: remove it, and the cell runs again")


def mean_share(results: Sequence[TrainingResult]) -> float:
    return math.fsum(result.share for result in results) / len(results)
