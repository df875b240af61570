"""A sweep as the folder of its grid records it, without the command that planned it.

Invariants: only plans that still have their hash count. The keys that were swept are those whose
values differ between the cells. Files are read, none is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.errors import BadRequest
from stoker.fleet.grid.cell import Plan
from stoker.fleet.grid.directory import Grid
from stoker.recipe.recipe import SPECS, dump_value
from stoker.study.search import REPLICATE, Point
from stoker.study.sweep import Sweep

TRAIN, GO_ON, CHOOSE = "train", "go_on", "choose"
"""What a cell of a sweep does."""


def newest_plan(grid: Grid) -> Plan | None:
    """The plan that was frozen last; None where the folder is no grid. Raises BadRequest where that
    plan was changed."""
    files = sorted(
        (file for file in (grid.path / "plans").glob("*.jsonl") if file.is_file()),
        key=lambda file: (file.stat().st_mtime_ns, file.name),
    )
    return grid.plan(files[-1].stem) if files else None


def kinds_of(plan: Plan) -> set[str]:
    """What the cells of a plan do."""
    return {str(cell.meaning.get("do")) for cell in plan.cells.values()}


def is_sweep(plan: Plan) -> bool:
    """Whether a plan is that of a sweep."""
    return TRAIN in kinds_of(plan) <= {TRAIN, GO_ON, CHOOSE}


def sweep_of(plan: Plan) -> Sweep:
    """The sweep of a plan. Raises BadRequest where a cell has no recipe."""
    sweep, rungs = Sweep(plan), dict[str, int]()
    values: dict[str, Mapping[str, Any]] = {}
    for name, cell in plan.cells.items():
        before = max((rungs[parent] for parent in cell.parents), default=0)
        rungs[name] = before + (cell.meaning["do"] == CHOOSE)
        if cell.meaning["do"] == GO_ON:
            sweep.later[name] = rungs[name]
        elif cell.meaning["do"] == TRAIN:
            values[name] = recipe_of(cell.meaning)
    keys = swept_keys(list(values.values()))
    sweep.cells |= {name: point_of(each, keys) for name, each in values.items()}
    return sweep


def recipe_of(meaning: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a cell's recipe, with the defaults of those that it does not name."""
    values = meaning.get("values")
    if not isinstance(values, dict):
        raise BadRequest("a cell of the plan has no recipe: start the grid's command again")
    return {name: dump_value(spec.default) for name, spec in SPECS.items()} | values


def swept_keys(recipes: list[Mapping[str, Any]]) -> list[str]:
    """The keys whose values differ, the seed last."""
    keys = dict.fromkeys(key for recipe in recipes for key in recipe)
    swept = [key for key in keys if any(r.get(key) != recipes[0].get(key) for r in recipes)]
    return sorted(swept, key=lambda key: key == REPLICATE)


def point_of(recipe: Mapping[str, Any], keys: list[str]) -> Point:
    return {key: recipe.get(key) for key in keys}
