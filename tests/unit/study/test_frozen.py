from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import BadRequest
from stoker.fleet.grid.directory import Grid
from stoker.recipe.resolve import resolve
from stoker.study.frozen import (
    OPTIONS,
    PLACES,
    keep_models,
    open_data,
    open_recipe,
    training_meaning,
    write_places,
)


def meaning(**flags: Any) -> dict[str, Any]:
    return training_meaning(resolve(None, flags).recipe, "set", 1)


@pytest.mark.parametrize(
    "flags", [{"lr": 0.3}, {"patience": 2}, {"target": 0.5}, {"eval_every": 2}, {"micro_batch": 8}]
)
def test_a_key_that_changes_the_result_is_part_of_the_meaning(flags: dict[str, Any]) -> None:
    assert meaning(**flags) != meaning()


@pytest.mark.parametrize(
    "flags", [{"threads": 3}, {"log_interval": 7}, {"time_limit": 60.0}, {"checkpoint_interval": 9}]
)
def test_a_key_that_changes_no_result_is_not(flags: dict[str, Any]) -> None:
    assert meaning(**flags) == meaning()


def test_such_a_key_is_taken_from_the_latest_command(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "grid")
    for threads in (2, 3):
        recipe = resolve(None, {"threads": threads, "time_limit": 60.0, "lr": 0.5}).recipe
        write_places(grid, tmp_path, "set", [recipe])
    recipe = open_recipe(grid.path, {"lr": 0.1}).recipe
    assert (recipe.threads, recipe.time_limit, recipe.lr) == (3, 0, 0.1)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"lr": 5, "no key": 1}'])
def test_what_others_wrote_there_changes_no_result(tmp_path: Path, text: str) -> None:
    (tmp_path / OPTIONS).write_text(text)
    assert open_recipe(tmp_path, {"lr": 0.1}).recipe.lr == 0.1


def test_an_option_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / OPTIONS).write_text(json.dumps({"threads": "many"}))
    with pytest.raises(BadRequest, match="threads"):
        open_recipe(tmp_path, {})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"set": 3}'])
def test_a_set_whose_place_is_unknown_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / PLACES).write_text(text)
    with pytest.raises(BadRequest, match="does not say where the packed set"):
        open_data(tmp_path, "set")


def test_the_copy_of_a_model_that_was_edited_is_refused(tmp_path: Path) -> None:
    grid, file = Grid(tmp_path), tmp_path / "net.py"
    file.write_text("def build(classes):\n    return 1\n")
    from stoker.cli.flags import with_own_code

    resolved = resolve(None, {"model": f"{file}:build"})
    recipe = with_own_code([resolved], trusted=False)[0].recipe
    keep_models(grid, [recipe])
    (kept,) = (tmp_path / "models").iterdir()
    values = training_meaning(recipe, "set", 1)["values"]
    assert open_recipe(tmp_path, values).recipe.model_code == recipe.model_code
    kept.write_text(kept.read_text().replace("1", "2"))
    with pytest.raises(BadRequest, match="has changed since the cell was planned"):
        open_recipe(tmp_path, values)
