"""A run that is pruned at its last checkpoint, to be trained from there.

Invariants: everything that a run does after a step follows from its checkpoint there. So a copy
with masks in its checkpoint trains with the weights, the running statistics, the optimiser, the
schedule and the images of that step, pruned; with masks that keep everything, it is the run itself.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from stoker.commit import remove, write_bytes, write_json
from stoker.recipe.recipe import Recipe
from stoker.run.directory import Run
from stoker.study.continued import copy_run
from stoker.survive.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from stoker.survive.manifest import checkpoint_folder
from stoker.train.device import build_on_device
from stoker.train.model.masks import (
    Masking,
    Masks,
    kernel_names,
    kernels_of,
    packed_digest,
    unpack_masks,
)
from stoker.train.state import TrainState

CPU = torch.device("cpu")
NO_FACTS = ("format", "files", "is_best", "position", "step", "evaluated", "best", "stale")
"""What a manifest says of the checkpoint itself, not of how to use its weights."""


def pruned_copy(
    source: Path, target: Path, recipe: Recipe, masks: Masks, weights_seed: int | None = None
) -> Run:
    """A copy of a run whose last checkpoint is pruned, made if it is not there yet; with a seed,
    the checkpoint is that of step 0 with other random weights."""

    def prune(run: Run) -> None:
        folder = checkpoint_folder(run.path, "last")
        snapshot = read_checkpoint(folder)
        state = state_of(recipe, len(run.record["classes"]), snapshot, weights_seed)
        state.masking = Masking(state.model, masks)
        state.hold_pruned()
        state.best, state.stale = -1.0, 0  # those were evaluations of the dense model
        facts = {name: fact for name, fact in snapshot.facts.items() if name not in NO_FACTS}
        remove(folder)
        write_checkpoint(folder, state.snapshot({**facts, "is_best": False}))
        write_bytes(run.path / "last", folder.name.encode())
        masked = {"digest": packed_digest(state.masking.packed), "step": state.step}
        write_json(run.path / "run.json", {**run.record, "masks": masked})

    return copy_run(source, target, prune)


def state_of(
    recipe: Recipe, classes: int, snapshot: Snapshot, weights_seed: int | None
) -> TrainState:
    """The state of a checkpoint; with a seed, that of a run that begins with such weights."""
    if weights_seed is not None:
        model, _ = build_on_device(replace(recipe, seed=weights_seed), classes, CPU)
        return TrainState.fresh(recipe, model, CPU)
    state = TrainState.fresh(recipe, build_on_device(recipe, classes, CPU)[0], CPU)
    state.restore(snapshot)
    return state


def trained_kernels(run: Run, recipe: Recipe) -> tuple[dict[str, torch.Tensor], Masks | None]:
    """The kernels of a run's last checkpoint, by name in the order of the model, and its masks;
    None where it has none."""
    snapshot = read_checkpoint(checkpoint_folder(run.path, "last"))
    model, _ = build_on_device(recipe, len(run.record["classes"]), CPU)
    kernels = kernels_of(snapshot.weights, kernel_names(model))
    packed = snapshot.state.get("masks")
    shapes = {name: kernel.shape for name, kernel in kernels.items()}
    return kernels, unpack_masks(packed, shapes) if packed else None
