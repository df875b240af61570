"""The program of a cell of a ticket study: python -m stoker.study.tickets.cells

Cells are dense runs up to a rewind point, and pruned runs from there.

Invariants: a dense cell goes on with the run of its parent, so the last one has trained exactly as
one run would. A ticket cell has two parents: the dense cell that it rewinds to, and the trained run
whose weights decide what is pruned. Only the end of a cell is evaluated, and only its last
checkpoint is kept: that is the model whose accuracy the study shows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.fleet.grid.directory import Grid
from stoker.recipe.recipe import SPECS
from stoker.run.directory import Run
from stoker.study.cell import run_cell
from stoker.study.continued import copy_run
from stoker.study.frozen import open_recipe
from stoker.study.train_cell import train_until
from stoker.survive.stopping import StopRequest

QUANTILES = (60, 65, 70, 75, 80, 85, 90, 95, 99)
"""Shares in percent for which the magnitude is reported below which they lie."""
MAGNITUDE, LAYERS, RANDOM = "magnitude", "layers", "random"
"""How a mask is chosen: the largest weights of all, those of each layer, or any, but as many of
each layer as by magnitude."""


def dense_cell(folder: Path, meaning: Mapping[str, Any], stop: StopRequest) -> dict[str, Any]:
    """Train densely to an epoch, from where the parent is, if there is one; returns the result, at
    the end of training with the quantiles of the weights. Raises Interrupted."""
    for parent in parents_of(folder):
        copy_run(run_of(folder, parent).path, folder / "work" / "run")
    until = meaning.get("until")
    result = train_until(folder, meaning, until, stop, places_of(meaning))
    if until is not None:
        return result
    return {**result, **magnitudes(folder, meaning)}


def magnitudes(folder: Path, meaning: Mapping[str, Any]) -> dict[str, Any]:
    """The quantiles of the magnitude of all kernel weights, and the size of each kernel."""
    import numpy as np

    from stoker.study.tickets.pruned import trained_kernels

    recipe = open_recipe(folder.parent.parent, meaning["values"]).recipe
    kernels, _ = trained_kernels(Run(folder / "work" / "run"), recipe)
    sizes = np.concatenate([kernel.abs().double().flatten().numpy() for kernel in kernels.values()])
    shares = [percent / 100 for percent in QUANTILES]
    return {
        "quantiles": dict(
            zip(map(str, QUANTILES), np.quantile(sizes, shares).tolist(), strict=True)
        ),
        "largest": float(sizes.max()),
        "zeros": int((sizes == 0).sum()),
        "total": len(sizes),
        "layers": {name: kernel.numel() for name, kernel in kernels.items()},
    }


def ticket_cell(folder: Path, meaning: Mapping[str, Any], stop: StopRequest) -> dict[str, Any]:
    """Prune the run of the first parent by the weights of the second, and train it to the end;
    returns the result, with what is kept of each layer. Raises Interrupted."""
    from stoker.study.tickets.pruned import pruned_copy, trained_kernels
    from stoker.train.model.masks import largest_kept, largest_kept_by_layer, random_like

    target = folder / "work" / "run"
    if not target.exists():
        recipe = open_recipe(folder.parent.parent, meaning["values"]).recipe
        rewound, trained = (run_of(folder, parent) for parent in parents_of(folder))
        kernels, before = trained_kernels(trained, recipe)
        if meaning["mask"] == LAYERS:
            masks = largest_kept_by_layer(kernels, meaning["keep"])
        else:
            masks = largest_kept(kernels, meaning["keep"], before)
        if meaning["mask"] == RANDOM:
            masks = random_like(masks, recipe.seed)
        pruned_copy(rewound.path, target, recipe, masks, meaning.get("weights_seed"))
    result = train_until(folder, meaning, None, stop, places_of(meaning))
    run = Run(target)
    return {**result, **run.starts()[-1]["masks"], "masks": run.masks["digest"]}


def places_of(meaning: Mapping[str, Any]) -> dict[str, Any]:
    """How a cell runs: it evaluates and keeps nothing before its end, and rehearses no save, as the
    first cell of a chain is one."""
    epochs = meaning["values"].get("epochs", SPECS["epochs"].default)
    return {"eval_every": epochs, "keep_checkpoints": 1, "rehearse": False}


def parents_of(folder: Path) -> list[str]:
    return list(json.loads((folder / "cell.json").read_bytes())["parents"])


def run_of(folder: Path, cell: str) -> Run:
    """The run of another cell."""
    return Run(Grid(folder.parent.parent).cell_path(cell) / "work" / "run")


if __name__ == "__main__":
    sys.exit(run_cell({"dense": dense_cell, "ticket": ticket_cell}))
