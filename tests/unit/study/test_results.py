from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import BadRequest
from stoker.fleet.grid.directory import Grid
from stoker.study.results import chosen_runs, training_result

CELL, OTHER = "a" * 32, "b" * 32
RESULT = {"images": 10, "top1": 7, "epoch": 2.0}


def grid_with(folder: Path, result: bytes) -> Grid:
    grid = Grid(folder)
    grid.files.create(f"cells/{CELL}/result.json", result)
    return grid


def test_a_result_is_read(tmp_path: Path) -> None:
    result = training_result(grid_with(tmp_path, json.dumps(RESULT).encode()), CELL)
    assert (result.share, result.epoch, result.began) == (0.7, 2.0, CELL)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"[" * 100_000,
        json.dumps({**RESULT, "images": 0}).encode(),
        json.dumps({**RESULT, "images": True}).encode(),
        json.dumps({**RESULT, "top1": 11}).encode(),
        json.dumps({**RESULT, "top1": -1}).encode(),
        json.dumps({**RESULT, "top1": "7"}).encode(),
        json.dumps({**RESULT, "epoch": None}).encode(),
        json.dumps({**RESULT, "epoch": float("nan")}).encode(),
        json.dumps({**RESULT, "began": "../../elsewhere"}).encode(),
        json.dumps({**RESULT, "began": 3}).encode(),
    ],
)
def test_a_damaged_result_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(BadRequest, match="is damaged: remove it"):
        training_result(grid_with(tmp_path, text), CELL)


def test_the_runs_of_a_choice_are_read(tmp_path: Path) -> None:
    choice = {"chosen": [{"cells": [CELL], "began": [OTHER]}]}
    grid = grid_with(tmp_path, json.dumps(choice).encode())
    assert chosen_runs(grid, CELL, 0, 0) == (CELL, OTHER)


@pytest.mark.parametrize(
    "choice",
    [
        None,
        [],
        {},
        {"chosen": 1},
        {"chosen": []},
        {"chosen": [{"cells": [CELL]}]},
        {"chosen": [{"cells": [], "began": []}]},
        {"chosen": [{"cells": ["../../elsewhere"], "began": [OTHER]}]},
        {"chosen": [{"cells": [CELL], "began": ["/"]}]},
    ],
)
def test_a_damaged_choice_is_refused(tmp_path: Path, choice: Any) -> None:
    grid = grid_with(tmp_path, json.dumps(choice).encode())
    with pytest.raises(BadRequest, match="is damaged: remove it"):
        chosen_runs(grid, CELL, 0, 0)
