"""Memory and disk that a model takes, known without making it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from stoker.errors import BadRequest
from stoker.recipe.recipe import Recipe
from stoker.train.model.build import build_model
from stoker.train.trials import memory as footprint
from stoker.train.trials.memory import checkpoint_bytes, image_bytes, parameters, refuse_too_large

TINY = Recipe(model="resnet9_w1", image_size=16, batch_size=8, ema=True)


def test_parameters_are_counted_without_making_them() -> None:
    count = sum(p.numel() for p in build_model(TINY, 7)[0].parameters())
    assert parameters(TINY, 7) == count
    assert checkpoint_bytes(TINY, count) == 12 * count  # weights, average, momentum
    assert checkpoint_bytes(Recipe(optimizer="adamw"), 10) == 120


def test_a_batch_holds_what_its_backward_pass_needs() -> None:
    model = build_model(TINY, 7)[0].train()
    own = {p.data_ptr() for p in (*model.parameters(), *model.buffers())}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(torch.zeros(8, 3, 16, 16))
    real = sum(t.untyped_storage().nbytes() for at, t in kept.items() if at not in own) / 8
    assert image_bytes(TINY, 7) == pytest.approx(footprint.MARGIN * real, rel=0.1)
    assert image_bytes(replace(TINY, amp="bf16"), 7) == pytest.approx(
        image_bytes(TINY, 7) / 2, rel=0.01
    )


def test_four_times_the_pixels_take_four_times_the_memory() -> None:
    larger = image_bytes(replace(TINY, image_size=32), 7)
    assert larger == pytest.approx(4 * image_bytes(TINY, 7), rel=0.1)


def test_what_does_not_fit_is_refused_with_what_does() -> None:
    each = image_bytes(TINY, 7)
    refuse_too_large(TINY, 7, 8 * each)
    with pytest.raises(BadRequest, match="lower --batch-size") as refused:
        refuse_too_large(TINY, 7, 7 * each)
    fits = re.search(r"--micro-batch to (\d+)", str(refused.value))
    assert fits is not None
    refuse_too_large(replace(TINY, micro_batch=int(fits.group(1))), 7, 7 * each)


def test_a_model_that_needs_numbers_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Choosy(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return input if bool(input.sum() > 0) else -input

    monkeypatch.setattr(
        footprint, "model_of_shapes", lambda recipe, classes: Choosy(1, 1, device="meta")
    )
    assert image_bytes(TINY, 7) == 0
    refuse_too_large(TINY, 7, 1)
