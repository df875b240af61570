"""The order of a model's layers, its head, and the learning rates of both."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stoker.recipe.recipe import Recipe
from stoker.train.model.build import build_model
from stoker.train.model.layers import head_modules, lr_scales, stages
from stoker.train.optim import build_optimizer, parameter_groups, set_learning_rate

TINY = Recipe(model="resnet9_w2")


class Own(nn.Module):
    """A model that says nothing about itself: a parameter of its own, and modules."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1))
        self.stem = nn.Conv2d(3, 4, 3)
        self.blocks = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
        self.classify = nn.Linear(4, 3)


def timm_model(name: str) -> nn.Module:
    pytest.importorskip("timm")
    return build_model(Recipe(model=name, image_size=224), 3)[0]


def test_our_own_model_counts_its_blocks() -> None:
    model, _ = build_model(TINY, 3)
    numbers = stages(model, coarse=True)
    assert head_modules(model) == ("head",)
    assert numbers["features.0.0.weight"] == 0
    assert numbers["features.5.body.0.0.weight"] == 5
    assert numbers["head.weight"] == numbers["head.bias"] == 6
    assert stages(model, coarse=False) == numbers


def test_a_model_that_says_nothing_is_grouped_by_its_modules() -> None:
    model = Own()
    numbers = stages(model, coarse=True)
    assert head_modules(model) == ("classify",)
    names = ["stem.weight", "blocks.0.weight", "blocks.2.weight", "classify.bias"]
    assert [numbers[name] for name in names] == [0, 1, 2, 3]
    assert numbers["token"] == 0
    assert head_modules(nn.Sequential(nn.ReLU())) == ()


@pytest.mark.parametrize(
    ("name", "heads", "most"),
    [("resnet10t", ("fc",), 5), ("vit_tiny_patch16_224", ("head",), 13)],
)
def test_timm_groups_its_models(name: str, heads: tuple[str, ...], most: int) -> None:
    model = timm_model(name)
    numbers = stages(model, coarse=True)
    assert head_modules(model) == heads
    assert set(numbers.values()) == set(range(most + 1))
    assert numbers[f"{heads[0]}.weight"] == most
    assert set(numbers) == {name for name, _ in model.named_parameters()}


def test_layer_decay_is_that_of_timm() -> None:
    optim = pytest.importorskip("timm.optim")
    model = timm_model("resnet10t")
    theirs = {
        id(parameter): group["lr_scale"]
        for group in optim.param_groups_layer_decay(model, layer_decay=0.7)
        for parameter in group["params"]
    }
    ours = lr_scales(model, 1.0, 0.7)
    assert {id(p): ours[n] for n, p in model.named_parameters()} == pytest.approx(theirs)


def test_the_default_has_the_two_groups_of_old_checkpoints() -> None:
    model, _ = build_model(TINY, 3)
    groups = parameter_groups(TINY, model)
    assert [set(group) for group in groups] == [{"params", "weight_decay"}] * 2
    assert [group["weight_decay"] for group in groups] == [TINY.weight_decay, 0.0]


def test_each_factor_has_its_groups_and_no_weight_is_lost() -> None:
    model, _ = build_model(TINY, 3)
    recipe = Recipe(model="resnet9_w2", head_lr_scale=10.0, layer_decay=0.5)
    optimizer = build_optimizer(recipe, model)
    set_learning_rate(optimizer, 0.1)
    rates = {id(p): g["lr"] for g in optimizer.param_groups for p in g["params"]}
    named = dict(model.named_parameters())
    assert len(rates) == len(named)
    assert rates[id(named["head.weight"])] == pytest.approx(1.0)
    assert rates[id(named["features.5.body.0.0.weight"])] == pytest.approx(0.05)
    assert rates[id(named["features.0.0.weight"])] == pytest.approx(0.1 * 0.5**6)
    decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decays[id(named["head.bias"])] == 0
    assert decays[id(named["head.weight"])] == recipe.weight_decay
