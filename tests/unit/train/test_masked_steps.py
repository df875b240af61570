"""Pruned weights, and all that is kept of them, are exactly zero after every step."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from bits import same
from stoker.data.loading.loader import Loaded
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline
from stoker.survive.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from stoker.survive.remedies import Remedies
from stoker.train.mixing import Mix
from stoker.train.model.build import build_model
from stoker.train.model.masks import Masking, kernel_names, kernels_of, largest_kept
from stoker.train.optim import gradient_norm
from stoker.train.process_group import Ranks
from stoker.train.state import TrainState, misfit
from stoker.train.step import Step

CPU = torch.device("cpu")
IMAGES, CLASSES = 8, 3
PLAIN = Recipe(
    model="resnet9_w2", weight_decay=0.05, lr=0.02, batch_size=IMAGES, image_size=8, epochs=1
)
OPTIMIZERS = ["sgd", "adamw", "lamb", "lars", "lion", "muon", "adafactorbv", "rmsprop", "adabelief"]


def fresh(recipe: Recipe, seed: int = 0) -> TrainState:
    if recipe.optimizer not in ("sgd", "adamw"):
        pytest.importorskip("timm")
    model, _ = build_model(replace(recipe, seed=seed), CLASSES)
    return TrainState.fresh(recipe, model.to(memory_format=torch.channels_last), CPU)


def prune(state: TrainState, share: float) -> Masking:
    kernels = kernels_of(state.model.state_dict(), kernel_names(state.model))
    state.masking = Masking(state.model, largest_kept(kernels, share))
    state.hold_pruned()
    return state.masking


def to_input(images: Tensor, mix: Mix | None) -> Tensor:
    return images.permute(0, 3, 1, 2).float() / 255


def step_of(recipe: Recipe, state: TrainState, folder: Path) -> Step:
    timeline, ranks = Timeline.of(recipe, 10 * IMAGES), Ranks(0, 1, 0, 1, CPU)
    return Step(recipe, timeline, ranks, state, state.model, to_input, Remedies(folder))


def make_step(step: Step) -> None:
    """The next step; its images are counted from the state, as those of a run are."""
    number = step.state.step
    images = np.random.default_rng(number).integers(0, 256, (IMAGES, 8, 8, 3), np.uint8)
    numbers = np.arange(IMAGES)
    batch = step.timeline.batch_of_step(number)
    step(Loaded(batch, images, numbers % CLASSES, numbers, numbers * 0))


def everything(state: TrainState) -> list[Any]:
    average = state.ema.model.state_dict() if state.ema else None
    return [state.model.state_dict(), average, state.optimizer.state_dict()]


def is_plus_zero(values: Tensor) -> bool:
    return bool((values == 0).all()) and not bool(values.signbit().any())


def require_zeros(state: TrainState, target: int) -> None:
    """Everything that has a value for each pruned weight holds +0.0 there, and so many are kept."""
    masking = state.masking
    assert masking is not None
    zeros = 0
    for name, mask in masking.masks.items():
        weight = state.model.get_parameter(name)
        held = [weight, *([state.ema.model.get_parameter(name)] if state.ema else [])]
        values = state.optimizer.state.get(weight, {}).values()
        held += [v for v in values if isinstance(v, Tensor) and v.shape == weight.shape]
        held += [weight.grad] if weight.grad is not None else []
        assert all(is_plus_zero(tensor.detach()[~mask]) for tensor in held), name
        zeros += int((~mask).sum())
    total = sum(mask.numel() for mask in masking.masks.values())
    assert total - zeros == target == masking.facts()["kept"]


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    share=st.sampled_from([0.0, 0.01, 0.2, 0.5, 1.0]),
    ema=st.booleans(),
    amp=st.sampled_from(["off", "bf16"]),
    clip=st.sampled_from([0.0, 0.05]),
    micro_batch=st.sampled_from([0, 3]),
)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_zero_after_every_step_and_after_resuming(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    share: float,
    ema: bool,
    amp: str,
    clip: float,
    micro_batch: int,
) -> None:
    keys: dict[str, Any] = {"ema": ema, "amp": amp, "clip_grad": clip, "micro_batch": micro_batch}
    recipe, folder = replace(PLAIN, optimizer=name, **keys), tmp_path_factory.mktemp("masked")
    state = fresh(recipe)
    step = step_of(recipe, state, folder)
    make_step(step)  # with momentum from dense steps, as a rewind has
    total = prune(state, share).facts()["total"]
    target = round(share * total)
    for _ in range(2):
        make_step(step)
        require_zeros(state, target)
    write_checkpoint(folder / "checkpoint", state.snapshot({}))
    snapshot = read_checkpoint(folder / "checkpoint")
    resumed = fresh(recipe, seed=1)
    assert misfit(recipe, resumed.model, snapshot) == ""
    resumed.restore(snapshot)
    require_zeros(resumed, target)
    again = step_of(recipe, resumed, folder)
    for _ in range(2):
        make_step(step)
        make_step(again)
        require_zeros(resumed, target)
    assert same(everything(resumed), everything(state))


def test_masks_that_keep_everything_change_no_bit(tmp_path: Path) -> None:
    recipe = replace(PLAIN, ema=True, clip_grad=0.05)
    states = [fresh(recipe), fresh(recipe)]
    prune(states[1], 1.0)
    for state in states:
        step = step_of(recipe, state, tmp_path)
        for _ in range(3):
            make_step(step)
    assert same(everything(states[0]), everything(states[1]))
    assert "masks" not in states[0].snapshot({}).state


def test_the_norm_counts_only_what_is_trained(tmp_path: Path) -> None:
    state = fresh(PLAIN)
    masking = prune(state, 0.1)
    step = step_of(PLAIN, state, tmp_path)
    make_step(step)
    kept = [
        p.grad[masking.masks[name]] if name in masking.masks else p.grad
        for name, p in state.model.named_parameters()
        if p.grad is not None
    ]
    whole = gradient_norm([p.grad for p in state.model.parameters() if p.grad is not None])
    torch.testing.assert_close(gradient_norm(kept), whole)


def masked_snapshot(ema: bool = False) -> tuple[Recipe, TrainState, Snapshot]:
    recipe = replace(PLAIN, ema=ema)
    state = fresh(recipe)
    prune(state, 0.3)
    return recipe, state, state.snapshot({})


def test_restoring_zeroes_what_a_changed_checkpoint_brings_back() -> None:
    recipe, state, snapshot = masked_snapshot(ema=True)
    for tensors in (snapshot.weights, snapshot.ema):
        for name in snapshot.state["masks"]:
            tensors[name].fill_(-1.0)
    resumed = fresh(recipe, seed=1)
    resumed.restore(snapshot)
    assert state.masking is not None
    require_zeros(resumed, state.masking.facts()["kept"])


HOSTILE = {
    "no table": lambda masks: [1],
    "nothing": lambda masks: None,
    "empty": lambda masks: {},
    "one is missing": lambda masks: dict(list(masks.items())[1:]),
    "one of a norm": lambda masks: {**masks, "features.0.1.weight": masks["head.weight"]},
    "another name": lambda masks: {f"x{name}": mask for name, mask in masks.items()},
    "too short": lambda masks: {name: mask[:-1] for name, mask in masks.items()},
    "too long": lambda masks: {name: mask.repeat(2) for name, mask in masks.items()},
    "no bytes": lambda masks: {name: mask.float() for name, mask in masks.items()},
    "no tensors": lambda masks: {name: mask.tolist() for name, mask in masks.items()},
    "two dimensions": lambda masks: {name: mask[None] for name, mask in masks.items()},
}


@pytest.mark.parametrize("change", HOSTILE)
def test_masks_of_another_model_are_refused(change: str) -> None:
    recipe, state, snapshot = masked_snapshot()
    assert misfit(recipe, state.model, snapshot) == ""
    hostile = copy.deepcopy(snapshot)
    hostile.state["masks"] = HOSTILE[change](snapshot.state["masks"])
    assert "its masks are" in misfit(recipe, state.model, hostile)
