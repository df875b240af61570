"""Every optimiser of timm that is offered: restored to the bit, and untouched by a bad gradient.

A share of them runs here, another one with the next commit; `--whole` runs them all.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from bits import same
from golden import check_golden
from shares import share
from stoker.data.loading.loader import Loaded
from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline
from stoker.survive.checkpoint import read_checkpoint, write_checkpoint
from stoker.survive.remedies import Remedies, Trouble
from stoker.train.mixing import Mix
from stoker.train.model import optimizer_names
from stoker.train.model.build import build_model
from stoker.train.model.optimizer_names import (
    BUILT_IN,
    check_optimizer,
    refused_of,
    timm_optimizers,
)
from stoker.train.optim import build_optimizer, skips_on_device
from stoker.train.process_group import Ranks
from stoker.train.state import TrainState, misfit
from stoker.train.step import Step

pytest.importorskip("timm")
CPU = torch.device("cpu")
IMAGES, CLASSES = 8, 3
PLAIN = Recipe(
    model="resnet9_w16", weight_decay=0.01, lr=0.01, ema=True, batch_size=IMAGES, image_size=8
)
PARTS = 4
COMMON = ["lamb", "lars", "lion", "muon", "adan", "sgdw", "rmsprop", "adabelief", "adafactorbv"]
"""These run with every commit."""


def offered() -> list[str]:
    spec = find_spec("timm")
    assert spec is not None
    names = timm_optimizers(*(spec.submodule_search_locations or ()))
    return sorted({*names, *BUILT_IN} - refused_of(names))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole")
        others = [name for name in offered() if name not in COMMON]
        metafunc.parametrize("name", [*COMMON, *share("optimisers", others, PARTS, whole=whole)])


def fresh(name: str, **keys: Any) -> TrainState:
    recipe = replace(PLAIN, optimizer=name, **keys)
    torch.manual_seed(0)
    return TrainState.fresh(recipe, build_model(recipe, CLASSES)[0], CPU)


def train(state: TrainState, steps: int) -> None:
    for _ in range(steps):
        draw = torch.Generator().manual_seed(state.step)
        images = torch.randn(6, 3, 8, 8, generator=draw)
        labels = torch.randint(CLASSES, (6,), generator=draw)
        state.optimizer.zero_grad(set_to_none=True)
        for group in state.optimizer.param_groups:
            group["lr"] = 0.002 * (1 + state.step)
        cross_entropy(state.model(images), labels).backward()
        state.optimizer.step()
        if state.ema:
            state.ema.update(state.model, state.step)
        state.step, state.position = state.step + 1, state.position + 6


def everything(state: TrainState) -> list[Any]:
    assert state.ema is not None
    optimizer = state.optimizer.state_dict()
    return [state.model.state_dict(), state.ema.model.state_dict(), optimizer]


@pytest.mark.exact
def test_its_state_is_restored_to_the_bit(name: str, tmp_path: Path) -> None:
    state = fresh(name)
    train(state, 2)
    write_checkpoint(tmp_path / "checkpoint", state.snapshot({}))
    snapshot = read_checkpoint(tmp_path / "checkpoint")  # loads weights only
    resumed = fresh(name)
    assert misfit(replace(PLAIN, optimizer=name), resumed.model, snapshot) == ""
    resumed.restore(snapshot)
    for one in (state, resumed):
        train(one, 2)
    assert same(everything(resumed), everything(state))
    assert all(tensor.isfinite().all() for tensor in state.model.state_dict().values())


def to_input(images: torch.Tensor, mix: Mix | None) -> torch.Tensor:
    return images.permute(0, 3, 1, 2).float() / 255


@pytest.mark.exact
def test_a_bad_gradient_touches_nothing(name: str, tmp_path: Path) -> None:
    state, ranks = fresh(name), Ranks(0, 1, 0, 1, CPU)
    train(state, 2)
    recipe = replace(PLAIN, optimizer=name, epochs=1)
    timeline = Timeline.of(recipe, 10 * IMAGES)

    def bad_input(images: torch.Tensor, mix: Mix | None) -> torch.Tensor:
        return to_input(images, mix) * float("nan")

    step = Step(recipe, timeline, ranks, state, state.model, bad_input, Remedies(tmp_path))
    images = np.ones((IMAGES, 8, 8, 3), np.uint8)
    numbers = np.arange(IMAGES)
    batch = timeline.batch_of_step(2)
    before = copy.deepcopy(weights_and_state(state))
    with pytest.raises(Trouble):
        step(Loaded(batch, images, numbers % CLASSES, numbers, numbers * 0))
    assert same(weights_and_state(state), before)


def weights_and_state(state: TrainState) -> list[Any]:
    """Weights, optimiser and average. The running statistics of the model have seen the input."""
    assert state.ema is not None
    optimizer = state.optimizer.state_dict()["state"]
    return [list(state.model.parameters()), state.ema.model.state_dict(), optimizer]


def test_it_takes_any_momentum(name: str) -> None:
    for momentum in (0.0, 0.5):
        train(fresh(name, momentum=momentum), 1)


class TestMomentum:
    def test_it_is_beta1_where_there_is_no_momentum(self) -> None:
        groups = fresh("lamb", momentum=0.7).optimizer.param_groups
        assert all(group["betas"] == (0.7, 0.999) for group in groups)

    def test_an_optimiser_with_another_beta1_keeps_it_by_default(self) -> None:
        assert fresh("adan").optimizer.param_groups[0]["betas"][0] == 0.98

    def test_lars_has_momentum_and_decay_as_the_recipe_says(self) -> None:
        kernels, others = fresh("lars", momentum=0.8).optimizer.param_groups
        assert kernels["momentum"] == others["momentum"] == 0.8
        assert (kernels["weight_decay"], others["weight_decay"]) == (0.01, 0.0)

    def test_the_largest_rate_is_that_of_the_recipe(self) -> None:
        assert fresh("adamc").optimizer.defaults["lr"] == PLAIN.lr


def test_factored_state_fits_and_that_of_another_model_does_not() -> None:
    recipe = replace(PLAIN, optimizer="adafactor", model="resnet9_w32", ema=False)
    model, _ = build_model(recipe, CLASSES)
    state = TrainState.fresh(recipe, model, CPU)
    train(state, 1)
    factors = [v for s in state.optimizer.state.values() for k, v in s.items() if "row" in k]
    assert factors
    snapshot = state.snapshot({})
    assert misfit(recipe, model, snapshot) == ""
    entry = next(s for s in snapshot.state["optimizer"]["state"].values() if "exp_avg_sq_row" in s)
    entry["exp_avg_sq_row"] = torch.zeros(7, 5)
    assert "optimiser" in misfit(recipe, model, snapshot)


def test_only_the_built_in_ones_skip_a_step_on_the_device() -> None:
    model = torch.nn.Linear(2, 2)
    for name in BUILT_IN:
        assert skips_on_device(build_optimizer(Recipe(optimizer=name), model, fused=True))
    for name in ("lion", "adam", "muon"):
        assert not skips_on_device(build_optimizer(Recipe(optimizer=name), model))


def test_the_names_are_those_of_timm() -> None:
    from timm.optim import list_optimizers

    names = {name for name in list_optimizers() if not name.startswith("bnb")}
    assert names - set(offered()) - refused_of(frozenset(names)) == set()
    assert set(offered()) <= names


def test_golden_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(name: str) -> str:
        with pytest.raises(BadRequest) as refusal:
            check_optimizer(Recipe(optimizer=name))
        return f"{name!r}: {refusal.value}"

    names = [
        "lio",
        "AdamW",
        "",
        "quadratic",
        "adahessian",
        "kronw",
        "lookahead_radam",
        "radabelief",
    ]
    lines = [answer(name) for name in [*names, "fusedlamb", "bnblion8bit", "bad\x1b[2J"]]
    monkeypatch.setattr(optimizer_names, "find_spec", lambda name: None)
    lines += ["without timm:", answer("muon"), answer("adamm")]
    check_golden("train_optimizers", lines)
