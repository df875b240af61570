"""The state is whole: what it restores goes on as if nothing had happened."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from bits import same
from stoker.recipe.recipe import Recipe
from stoker.survive.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from stoker.train.model.build import build_model
from stoker.train.optim import build_optimizer
from stoker.train.state import TrainState

CPU = torch.device("cpu")
PLAIN = Recipe(model="resnet9_w2", weight_decay=0.01)
RECIPES = {
    "sgd": PLAIN,
    "sgd with average": replace(PLAIN, ema=True),
    "adamw": replace(PLAIN, optimizer="adamw"),
    "adamw with average and scaler": replace(PLAIN, optimizer="adamw", ema=True, amp="fp16"),
    "sgd with scaler": replace(PLAIN, amp="fp16"),
}


def fresh(recipe: Recipe, seed: int = 0) -> TrainState:
    model, _ = build_model(replace(recipe, seed=seed), 3)
    return TrainState.fresh(recipe, model.to(memory_format=torch.channels_last), CPU)


def train(state: TrainState, steps: int) -> None:
    """Steps whose batches are counted from the state, as those of a run are."""
    for _ in range(steps):
        draw = torch.Generator().manual_seed(state.step)
        images = torch.randn(6, 3, 8, 8, generator=draw)
        labels = torch.randint(3, (6,), generator=draw)
        state.optimizer.zero_grad(set_to_none=True)
        for group in state.optimizer.param_groups:
            group["lr"] = 0.01 * (1 + state.step)
        state.scaler.scale(cross_entropy(state.model(images), labels)).backward()
        state.scaler.step(state.optimizer)
        state.scaler.update()
        if state.ema:
            state.ema.update(state.model, state.step)
        state.step, state.position = state.step + 1, state.position + 6
        state.evaluated, state.best = state.position - 2, state.step / 100


def everything(state: TrainState) -> dict[str, Any]:
    return {
        "model": state.model.state_dict(),
        "ema": state.ema.model.state_dict() if state.ema else None,
        "optimizer": state.optimizer.state_dict(),
        "scaler": state.scaler.state_dict(),
        "counters": (state.position, state.step, state.evaluated, state.best),
    }


def through_disk(snapshot: Snapshot, folder: Path) -> Snapshot:
    write_checkpoint(folder, snapshot)
    return read_checkpoint(folder)


@pytest.mark.parametrize("name", RECIPES)
class TestState:
    def test_a_snapshot_is_not_changed_by_later_steps(self, name: str) -> None:
        state = fresh(RECIPES[name])
        train(state, 2)
        snapshot = state.snapshot({"classes": ["a", "b", "c"]})
        before = copy.deepcopy(vars(snapshot))
        train(state, 2)
        assert same(vars(snapshot), before)
        assert not same(state.model.state_dict(), snapshot.weights)

    def test_restoring_gives_back_every_bit(self, name: str, tmp_path: Path) -> None:
        state, other = fresh(RECIPES[name]), fresh(RECIPES[name], seed=1)
        train(state, 3)
        assert not same(everything(other), everything(state))
        other.restore(through_disk(state.snapshot({}), tmp_path / "checkpoint"))
        assert same(everything(other), everything(state))

    def test_the_steps_after_are_those_of_a_run_never_interrupted(
        self, name: str, tmp_path: Path
    ) -> None:
        state, other = fresh(RECIPES[name]), fresh(RECIPES[name], seed=1)
        train(state, 3)
        other.restore(through_disk(state.snapshot({}), tmp_path / "checkpoint"))
        train(state, 3)
        train(other, 3)
        assert same(everything(other), everything(state))

    def test_taking_a_snapshot_changes_nothing(self, name: str) -> None:
        state, other = fresh(RECIPES[name]), fresh(RECIPES[name])
        train(state, 4)
        train(other, 2)
        other.snapshot({})
        train(other, 2)
        assert same(everything(other), everything(state))


class TestFacts:
    def test_a_snapshot_says_where_it_was_taken_and_how_to_use_it(self) -> None:
        state = fresh(PLAIN)
        train(state, 3)
        facts = state.snapshot({"classes": ["cat", "dog", "cow"]}).facts
        assert facts == {
            "position": 18,
            "step": 3,
            "evaluated": 16,
            "best": 0.03,
            "stale": 0,
            "classes": ["cat", "dog", "cow"],
        }

    def test_the_average_is_what_is_evaluated_where_there_is_one(self) -> None:
        plain, averaged = fresh(PLAIN), fresh(RECIPES["sgd with average"])
        assert plain.evaluated_model is plain.model
        assert averaged.ema is not None
        assert averaged.evaluated_model is averaged.ema.model
        assert plain.snapshot({}).ema == {}

    def test_a_fresh_state_has_seen_nothing_and_any_accuracy_is_better(self) -> None:
        state = fresh(PLAIN)
        assert (state.position, state.step, state.evaluated) == (0, 0, 0)
        assert state.best < 0


class LateCopy:
    """Copies nothing before `ready`, as a side stream may."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self.ended = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        assert not self.ended, "a copy after the end of the snapshot"
        self.pairs.append((torch.full_like(tensor, -7), tensor.detach()))
        return self.pairs[-1][0]

    def end(self) -> Callable[[], None]:
        self.ended += 1
        return self.finish

    def finish(self) -> None:
        for target, source in self.pairs:
            target.copy_(source)


@pytest.mark.parametrize("name", RECIPES)
def test_a_snapshot_may_be_copied_late(name: str, tmp_path: Path) -> None:
    state = fresh(RECIPES[name])
    train(state, 2)
    write_checkpoint(tmp_path / "plain", state.snapshot({}))
    state.copy = late = LateCopy()
    snapshot = state.snapshot({})
    assert late.ended == 1
    write_checkpoint(tmp_path / "late", snapshot)
    plain, read = (read_checkpoint(tmp_path / folder) for folder in ("plain", "late"))
    for what in ("weights", "ema", "state"):
        assert same(getattr(read, what), getattr(plain, what)), what


@pytest.mark.exact
@pytest.mark.parametrize("steps", [0, 2])
def test_a_fused_optimiser_has_momentum_whatever_the_checkpoint_holds(steps: int) -> None:
    """A checkpoint of step 0, or one that a CPU wrote there, has no momentum in it."""
    saved = fresh(PLAIN)
    train(saved, steps)
    state = fresh(PLAIN, seed=1)
    state.optimizer = build_optimizer(PLAIN, state.model, fused=True)
    state.restore(saved.snapshot({}))
    for ours, theirs in zip(state.model.parameters(), saved.model.parameters(), strict=True):
        buffer = saved.optimizer.state[theirs].get("momentum_buffer", torch.zeros_like(theirs))
        assert torch.equal(state.optimizer.state[ours]["momentum_buffer"], buffer)
