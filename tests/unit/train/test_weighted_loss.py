"""Class weights in the gradient: the mean over the batch, whatever it is divided into."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stoker.data.loading.loader import Loaded
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline
from stoker.survive.remedies import Remedies
from stoker.train.mixing import Mix, apply_mix, draw_mix, partners
from stoker.train.process_group import Ranks
from stoker.train.state import TrainState
from stoker.train.step import Step

CPU = torch.device("cpu")
IMAGES, CLASSES = 8, 4
WEIGHTS = torch.tensor([0.5, 1.0, 2.0, 4.0])


def to_input(images: Tensor, mix: Mix | None) -> Tensor:
    return apply_mix(mix, images.permute(0, 3, 1, 2).float() / 255)


def stepped(folder: Path, weights: Tensor | None, **keys: Any) -> tuple[Step, Loaded, float]:
    """A step that was made, its batch, and the loss that it logged."""
    recipe = Recipe(batch_size=IMAGES, image_size=4, epochs=1, lr=0.1, **keys)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, CLASSES))
    state, timeline = TrainState.fresh(recipe, model, CPU), Timeline.of(recipe, 10 * IMAGES)
    ranks = Ranks(0, 1, 0, 1, CPU)
    step = Step(recipe, timeline, ranks, state, model, to_input, Remedies(folder))
    step.class_weights = weights
    draw, numbers = np.random.default_rng(0), np.arange(IMAGES)
    images = draw.integers(0, 256, (IMAGES, 4, 4, 3), dtype=np.uint8)
    labels = draw.integers(0, CLASSES, IMAGES)
    loaded = Loaded(timeline.batch_of_step(0), images, labels, numbers, numbers * 0)
    logged = float(step(loaded).numbers()[0])
    return step, loaded, logged


def expected_gradient(step: Step, loaded: Loaded) -> Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, CLASSES))
    labels = torch.from_numpy(loaded.labels)
    mix = Mix.of(draw_mix(step.recipe, 4, loaded.samples, loaded.epochs))
    logits = model(to_input(torch.from_numpy(loaded.images), mix))
    share = mix.share if mix else torch.ones(IMAGES)
    other = labels[partners(IMAGES, CPU)]
    first = WEIGHTS[labels] * cross_entropy(logits, labels, reduction="none")
    second = WEIGHTS[other] * cross_entropy(logits, other, reduction="none")
    (share * first + (1 - share) * second).mean().backward()
    gradient = model[1].weight.grad
    assert gradient is not None
    return gradient


@pytest.mark.parametrize("micro_batch", [0, 2, 4])
@pytest.mark.parametrize("mixing", [{}, {"mixup_alpha": 0.5}, {"cutmix_prob": 1.0}])
def test_the_gradient_is_the_weighted_mean(
    mixing: dict[str, float], micro_batch: int, tmp_path: Path
) -> None:
    step, loaded, _ = stepped(tmp_path, WEIGHTS, micro_batch=micro_batch, **mixing)
    gradient = step.parameters[0].grad
    assert gradient is not None
    assert torch.allclose(gradient, expected_gradient(step, loaded), atol=1e-6)


def test_the_logged_loss_is_without_weights(tmp_path: Path) -> None:
    plain = stepped(tmp_path, None, mixup_alpha=0.5)[2]
    assert stepped(tmp_path, WEIGHTS, mixup_alpha=0.5)[2] == plain


@pytest.mark.exact
def test_weights_of_one_change_nothing(tmp_path: Path) -> None:
    plain, ones = (stepped(tmp_path, weights)[0] for weights in (None, torch.ones(CLASSES)))
    assert torch.equal(plain.parameters[0], ones.parameters[0])
