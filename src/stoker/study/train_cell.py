"""Cells that train one recipe on one packed set, in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.errors import Interrupted
from stoker.fleet.grid.directory import Grid
from stoker.run.directory import Run
from stoker.study.continued import copy_run
from stoker.study.frozen import open_data, open_recipe
from stoker.study.results import chosen_runs
from stoker.survive.manifest import checkpoint_folder, read_manifest
from stoker.survive.stopping import StopRequest

EVALUATED = ("images", "top1", "top5", "loss", "epoch")
"""The fields of an evaluation that are part of a result."""


def train_cell(folder: Path, meaning: Mapping[str, Any], stop: StopRequest) -> dict[str, Any]:
    """Train from the start; returns the result. Raises Interrupted if told to stop."""
    return train_until(folder, meaning, meaning.get("until"), stop)


def go_on_cell(folder: Path, meaning: Mapping[str, Any], stop: StopRequest) -> dict[str, Any]:
    """Go on with a run that the parent chose; returns the result, with the cell in which the run
    began. Raises Interrupted if told to stop."""
    grid = Grid(folder.parent.parent)
    (parent,) = json.loads((folder / "cell.json").read_bytes())["parents"]
    before, began = chosen_runs(grid, parent, meaning["place"], meaning["replicate"])
    copy_run(grid.cell_path(before) / "work" / "run", folder / "work" / "run")
    first = json.loads((grid.cell_path(began) / "cell.json").read_bytes())["meaning"]
    return {**train_until(folder, first, meaning["until"], stop), "began": began}


def train_until(
    folder: Path,
    meaning: Mapping[str, Any],
    until: float | None,
    stop: StopRequest,
    places: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train to an epoch, by default the last; returns the result. `places` are keys of the recipe
    that do not change it. Raises Interrupted."""
    grid = folder.parent.parent
    data = open_data(grid, meaning["set"])
    resolved = open_recipe(grid, {**meaning["values"], **(places or {})})
    run = Run(folder / "work" / "run")
    from stoker.train.attempt.inputs import AttemptOptions
    from stoker.train.attempt.session import train

    options = AttemptOptions(compute_threads=meaning["threads"], until=until)
    if train(data, resolved, run.path, (), stop, (), options) != "finished":
        raise Interrupted(f"stopped ({stop.reason}): the cell goes on when it runs again")
    return result_of(run)


def result_of(run: Run) -> dict[str, Any]:
    """The result of a run so far: its last evaluation, if there was one, and the hash of its last
    weights."""
    evaluations = run.merged("evaluation")[-1:]
    end = run.end() or {}
    manifest = read_manifest(checkpoint_folder(run.path, "last"))
    return {
        **{name: each[name] for each in evaluations for name in EVALUATED},
        "best": end.get("best"),
        "steps": end.get("step"),
        "weights": manifest["files"]["weights.safetensors"]["sha256"],
    }
