"""What is frozen: no gradient, no decay, no new statistics, and until when."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from golden import check_golden
from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.train.model.build import build_model
from stoker.train.model.freeze import NOTHING, is_trained, plan_freeze
from stoker.train.model.names import check_fine_tuning
from stoker.train.optim import build_optimizer, parameter_groups

BODY = Recipe(model="resnet9_w2", freeze="body", weights="x.pt", image_size=16)


def built(recipe: Recipe = BODY) -> nn.Module:
    return build_model(recipe, 3)[0]


def one_step(model: nn.Module, recipe: Recipe) -> None:
    optimizer = build_optimizer(recipe, model)
    plan_freeze(recipe, model).apply(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.1
    model(torch.rand(4, 3, 16, 16)).square().sum().backward()
    optimizer.step()


def changed(recipe: Recipe) -> set[str]:
    """The parameters and buffers that a step changes."""
    model = built(recipe)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    one_step(model, recipe)
    after = model.state_dict()
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_frozen_body_keeps_every_bit(optimizer: str) -> None:
    recipe = replace(BODY, optimizer=optimizer, weight_decay=0.5)
    assert changed(recipe) == {"head.weight", "head.bias"}


def test_the_first_stages_and_globs() -> None:
    stages = changed(replace(BODY, freeze="2"))
    assert not {n for n in stages if n.startswith(("features.0.", "features.1."))}
    assert {"features.2.body.0.0.weight", "features.2.body.0.1.running_mean"} <= stages
    kernels = changed(replace(BODY, freeze="features.?.0.weight,head"))
    assert "features.0.0.weight" not in kernels
    assert "head.bias" not in kernels
    # The BatchNorm of a frozen kernel is trained, so its statistics move.
    assert {"features.0.1.weight", "features.0.1.running_mean"} <= kernels


def test_statistics_are_held_again_after_the_model_is_set_to_training() -> None:
    model, freeze = built(), plan_freeze(BODY, built())
    freeze.apply(model)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert not any(norm.training for norm in norms)
    model.train()
    freeze.hold_statistics(model)
    assert model.training
    assert not any(norm.training for norm in norms)


def test_the_layout_of_the_optimiser_does_not_depend_on_what_is_frozen() -> None:
    model = built()
    names = {id(p): name for name, p in model.named_parameters()}

    def layout() -> list[list[str]]:
        return [[names[id(p)] for p in g["params"]] for g in parameter_groups(BODY, model)]

    before, freeze = layout(), plan_freeze(BODY, model)
    freeze.apply(model)
    assert layout() == before
    assert plan_freeze(BODY, model).names == freeze.names
    freeze.thaw(model)
    assert layout() == before
    assert all(p.requires_grad for p in model.parameters())


def test_what_is_never_trained_stays_so() -> None:
    model = built()
    fixed = model.features[0][0].weight.requires_grad_(False)  # type: ignore[index,union-attr]
    freeze = plan_freeze(BODY, model)
    freeze.apply(model)
    freeze.thaw(model)
    assert not is_trained(fixed)
    assert not fixed.requires_grad


@pytest.mark.parametrize(
    ("epochs", "position", "frozen"),
    [(0.0, 10**9, True), (1.0, 99, True), (1.0, 100, False), (0.5, 49, True), (0.5, 50, False)],
)
def test_until_when(epochs: float, position: int, frozen: bool) -> None:
    freeze = plan_freeze(replace(BODY, freeze_epochs=epochs), built())
    assert freeze.holds(position, 100) == frozen
    assert not NOTHING.holds(position, 100)


def test_sentences_golden() -> None:
    recipes = [
        BODY,
        replace(BODY, freeze_epochs=1.5),
        replace(BODY, freeze="2"),
        replace(BODY, freeze="features.0"),
        replace(BODY, freeze="features.2.*"),
    ]
    lines = [plan_freeze(recipe, built()).text() for recipe in recipes]
    for freeze in ("0", "7", "99999999999999999999", "feature.0", "head.wait,head", ",", "*"):
        with pytest.raises(BadRequest) as caught:
            plan_freeze(replace(BODY, freeze=freeze), built())
        lines.append(str(caught.value))
    for recipe in (replace(BODY, weights=""), replace(BODY, freeze="", freeze_epochs=2.0)):
        with pytest.raises(BadRequest) as caught:
            check_fine_tuning(recipe)
        lines.append(str(caught.value))
    with pytest.raises(BadRequest) as caught:
        replace(BODY, pretrained=True)
    check_golden("train_freeze", [*lines, str(caught.value)])
