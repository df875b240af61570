"""Small grids whose commands are a line of shell, for tests of workers and backends.

A command appends to `work/runs` when it begins, so that a test can count how often it ran.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.fleet.grid.cell import Cell, Plan
from stoker.fleet.grid.directory import Grid

BEGIN = 'cd "$STOKER_CELL"; echo run >> work/runs; '
DONE = 'echo "{\\"value\\": 1}" > draft.json'


def cell(label: str, script: str = DONE, parents: tuple[str, ...] = (), **meaning: Any) -> Cell:
    """A cell that runs some lines of shell in its folder."""
    return Cell(label, ("sh", "-c", BEGIN + script), {"label": label, **meaning}, parents)


def after_parents(parents: tuple[str, ...]) -> str:
    """A script that fails where a parent has no result."""
    checks = "".join(f"test -s ../{parent}/result.json || exit 1; " for parent in parents)
    return checks + DONE


def chain_grid(cells: int, length: int) -> Plan:
    """Cells in chains: each needs the one before it."""
    plan, last = Plan(), ""
    for number in range(cells):
        parents = (last,) if number % length else ()
        last = plan.add(cell(f"cell {number}", after_parents(parents), parents))
    return plan


def runs_of(grid: Grid, name: str) -> int:
    """How often the command of a cell has begun."""
    file = grid.cell_path(name) / "work" / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def finished(grid: Grid, name: str) -> int:
    """How often a cell was run to its end, by the records of the workers."""
    return sum(end["outcome"] == "finished" for end in grid.ends(name))


def make(folder: Path, plan: Plan) -> tuple[Grid, str]:
    grid = Grid(folder)
    return grid, grid.freeze(plan)
