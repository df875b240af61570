from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.errors import BadRequest
from stoker.fleet.grid.directory import Grid
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import resolve
from stoker.study.halving import choose_cell, plan_halving, rungs
from stoker.study.search import Point, grid_points, parse_axes
from stoker.study.sweep import trials_of
from stoker.survive.stopping import StopRequest


@pytest.mark.parametrize(
    ("settings", "epochs", "factor", "expected"),
    [
        (9, 9, 3, [(9, 1), (3, 3), (1, 9)]),
        (10, 30, 3, [(10, 4), (4, 10), (2, 30)]),
        (8, 100, 2, [(8, 13), (4, 25), (2, 50), (1, 100)]),
        (100, 4, 2, [(100, 1), (50, 2), (25, 4)]),
        (2, 2, 2, [(2, 1), (1, 2)]),
    ],
)
def test_rungs(settings: int, epochs: int, factor: int, expected: list[tuple[int, int]]) -> None:
    assert rungs(settings, epochs, factor) == expected


@pytest.mark.parametrize(
    ("settings", "epochs", "factor", "reason"),
    [
        (9, 9, 1, "at least 2"),
        (2, 9, 3, "there are 2"),
        (9, 2, 3, "at least 3 epochs"),
    ],
)
def test_rungs_that_make_no_sense(settings: int, epochs: int, factor: int, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        rungs(settings, epochs, factor)


def recipe_at(point: Point) -> Recipe:
    return resolve(None, {"epochs": 4, **point}).recipe


def test_the_graph_is_known_before_anything_runs() -> None:
    points = grid_points(parse_axes(["lr=0.1,0.2,0.3,0.4", "seed=0..1"]))
    sweep = plan_halving(trials_of(points, recipe_at), "set", 1, 2)
    kinds = [cell.meaning["do"] for cell in sweep.plan.cells.values()]
    assert kinds == ["train"] * 8 + ["choose"] + ["go_on"] * 4 + ["choose"] + ["go_on"] * 2
    assert [cell.meaning.get("until") for cell in sweep.plan.cells.values()] == (
        [1] * 8 + [None] + [2] * 4 + [None] + [4] * 2
    )
    assert len(sweep.cells) == 8
    assert sorted(sweep.later.values()) == [1] * 4 + [2] * 2


def test_epochs_are_not_varied() -> None:
    points = grid_points(parse_axes(["epochs=4,8"]))
    with pytest.raises(BadRequest, match="do not vary epochs"):
        plan_halving(trials_of(points, lambda point: resolve(None, point).recipe), "set", 1, 2)


def test_the_best_mean_is_chosen_and_of_equal_ones_the_first(tmp_path: Path) -> None:
    grid = Grid(tmp_path)
    a, b, c, d, e, f, first = (letter * 32 for letter in "abcdef0")
    for name, count in {a: 5, b: 7, c: 6, d: 6, e: 9, f: 3}.items():
        result = {
            "top1": count,
            "images": 10,
            "epoch": 1,
            **({"began": first} if name == c else {}),
        }
        grid.files.create(f"cells/{name}/result.json", json.dumps(result).encode())
    groups = [[a, b], [c, d], [e, f]]
    meaning = {"do": "choose", "keep": 2, "groups": groups}
    chosen = choose_cell(tmp_path / "cells" / "x", meaning, StopRequest())["chosen"]
    assert chosen == [
        {"cells": [a, b], "began": [a, b]},
        {"cells": [c, d], "began": [first, d]},
    ]
