"""Memory and disk that a model takes, known without making it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stoker.recipe.recipe import Recipe
from stoker.train.model.build import build_model
from stoker.train.trials.memory import MARGIN, activation_bytes, checkpoint_bytes, parameters

TINY = Recipe(model="resnet9_w1", image_size=16, batch_size=8, ema=True)


def test_parameters_are_counted_without_making_them() -> None:
    count = sum(p.numel() for p in build_model(TINY, 7)[0].parameters())
    assert parameters(TINY, 7) == count
    assert checkpoint_bytes(TINY, count) == 12 * count  # weights, average, momentum
    assert checkpoint_bytes(Recipe(optimizer="adamw"), 10) == 120


def test_a_pass_keeps_what_its_backward_pass_needs() -> None:
    model, images = build_model(TINY, 7)[0].train(), torch.zeros(8, 3, 16, 16)
    own = {p.data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(images)
    real = sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in own)
    assert activation_bytes(model, lambda: model(images)) == pytest.approx(MARGIN * real, rel=0.1)
