"""Pruned runs that are killed, on one rank and on two: what is pruned stays zero."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from chaos.recipes import command
from chaos.trainers import Trainers, assert_bit_equal
from stoker.recipe.resolve import recorded_recipe
from stoker.run.directory import Run
from stoker.study.tickets.pruned import pruned_copy, trained_kernels
from stoker.survive.checkpoint import read_checkpoint
from stoker.survive.manifest import manifest_of, names_in
from stoker.train.model.masks import Masks, largest_kept, unpack_masks

SHARE, EPOCHS = 0.1, 8
NAME = "jpeg, sgd, ema, accumulation, mixing, clipping"
pytestmark = pytest.mark.exact


def recipe_of(run: Run) -> Any:
    return recorded_recipe(run.values, "run.json")


def prune_by_itself(run: Run, target: Path) -> Run:
    """A copy of a run that was stopped, pruned by its own weights."""
    kernels, _ = trained_kernels(run, recipe_of(run))
    return pruned_copy(run.path, target, recipe_of(run), largest_kept(kernels, SHARE))


def pruned_values(tensors: dict[str, Tensor], masks: Masks) -> Tensor:
    return torch.cat([tensors[name][~mask] for name, mask in masks.items()])


def require_zeros(run: Run) -> None:
    """In every complete checkpoint: weights, average and momentum of pruned weights are +0.0."""
    folder = run.path / "checkpoints"
    names = [name for name in names_in(folder) if manifest_of(folder / name)]  # not half a save
    assert names
    for name in names:
        snapshot = read_checkpoint(folder / name)
        shapes = {name: snapshot.weights[name].shape for name in snapshot.state["masks"]}
        masks = unpack_masks(snapshot.state["masks"], shapes)
        total = sum(mask.numel() for mask in masks.values())
        assert sum(int(mask.sum()) for mask in masks.values()) == round(SHARE * total)
        sizes = sorted(mask.numel() for mask in masks.values())
        moments = [
            value
            for state in snapshot.state["optimizer"]["state"].values()
            for value in state.values()
            if isinstance(value, Tensor) and value.ndim > 1
        ]
        assert sorted(moment.numel() for moment in moments) == sizes
        assert sum(int((moment == 0).sum()) for moment in moments) >= total - round(SHARE * total)
        for tensors in (snapshot.weights, snapshot.ema):
            values = pruned_values(tensors, masks)
            assert not values.any() and not values.signbit().any()


@pytest.mark.parametrize("ranks", [1, 2])
def test_kills_leave_pruned_weights_at_zero(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path, ranks: int
) -> None:
    dense, log = Run(tmp_path / "dense"), tmp_path / "log"
    argv = command(packed_sets, dense.path, NAME, epochs=EPOCHS)
    kill = {"fault": "kill", "at": "backward", "count": 40, "rank": ranks - 1}
    assert -9 in trainers.train(argv, log, ranks=ranks, faults=[kill])
    runs = [prune_by_itself(dense, tmp_path / "first")]
    require_zeros(runs[0])
    runs.append(Run(shutil.copytree(runs[0].path, tmp_path / "second")))
    for run in runs:
        argv[argv.index("--run") + 1] = str(run.path)
        if run is runs[1]:
            for count in (5, 17):
                kills = [{**kill, "count": count}]
                assert -9 in trainers.train(argv, log, ranks=ranks, faults=kills)
                require_zeros(run)
        assert set(trainers.train(argv, log, ranks=ranks)) == {0}, log.read_text()[-2000:]
        require_zeros(run)
        masks = run.starts()[-1]["masks"]
        assert masks["kept"] == round(SHARE * masks["total"])
    assert_bit_equal(runs[1], runs[0])
