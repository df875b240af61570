"""Ticket studies whose cells run in this process, one after the other: no start of Python each."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stoker.commit import json_bytes
from stoker.data.dataset import Dataset
from stoker.fleet.grid.cell import Cell
from stoker.fleet.grid.directory import Grid
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import resolve
from stoker.run.directory import Run
from stoker.study.frozen import write_places
from stoker.study.tickets.cells import dense_cell, ticket_cell
from stoker.study.tickets.plan import TicketDesign, TicketStudy, plan_tickets
from stoker.survive.stopping import StopRequest
from tiny_runs import FLAGS

VALUES = FLAGS | {"epochs": 3, "lr": 0.05, "optimizer": "adamw", "ema": True, "ema_decay": 0.9}


def recipe_of(number: int, **values: Any) -> Recipe:
    """The recipe of a replicate."""
    return resolve(None, VALUES | {"seed": 3 + number} | values).recipe


def tiny_study(data: Path, design: TicketDesign, **values: Any) -> TicketStudy:
    fingerprint = Dataset(data).fingerprint
    return plan_tickets(
        [recipe_of(number, **values) for number in range(design.replicates)], design, fingerprint, 1
    )


def run_here(study: TicketStudy, folder: Path, data: Path, only: Iterable[str] = ()) -> Grid:
    """Run the cells of a study, or some of them with what they need, in the order of the plan."""
    wanted = needed(study, only) if only else set(study.plan.cells)
    cells = [cell for name, cell in study.plan.cells.items() if name in wanted]
    return run_cells_here(cells, folder, data)


def run_cells_here(cells: Iterable[Cell], folder: Path, data: Path) -> Grid:
    grid = Grid(folder)
    write_places(grid, data, Dataset(data).fingerprint, [recipe_of(0)])
    for cell in cells:
        path = grid.cell_path(cell.id)
        (path / "work").mkdir(parents=True, exist_ok=True)
        (path / "cell.json").write_text(json.dumps(cell.as_json()))
        program = {"dense": dense_cell, "ticket": ticket_cell}[cell.meaning["do"]]
        result = program(path, cell.meaning, StopRequest())
        grid.files.create(f"cells/{cell.id}/result.json", json_bytes(result))
    return grid


def needed(study: TicketStudy, cells: Iterable[str]) -> set[str]:
    """These cells and all that come before them."""
    names, waiting = set[str](), list(cells)
    while waiting:
        if (name := waiting.pop()) not in names:
            names.add(name)
            waiting += study.plan.cells[name].parents
    return names


def results(study: TicketStudy, grid: Grid) -> dict[str, Any]:
    """The committed results, by cell."""
    return {cell: grid.result(cell) for cell in study.plan.cells if grid.is_done(cell)}


def run_of(grid: Grid, cell: str) -> Run:
    return Run(grid.cell_path(cell) / "work" / "run")
