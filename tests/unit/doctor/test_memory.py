"""Whether a recipe fits into a GPU: every phase does, and no smaller micro-batch than needed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from stoker.doctor.memory import answer_memory, largest_fitting, largest_share
from stoker.recipe.recipe import Phase, Recipe
from stoker.train.trials.device_memory import GB, Peak, Prediction

TINY = Recipe(model="resnet9_w1", image_size=32, batch_size=64, eval_batch_size=8)
PHASED = replace(
    TINY,
    epochs=3,
    phases=(
        Phase(from_epoch=0, image_size=16, batch_size=512),
        Phase(from_epoch=1, image_size=24, batch_size=256),
        Phase(from_epoch=2, image_size=32, batch_size=64),
    ),
)


@pytest.mark.parametrize("limit", [1, 19, 20, 21, 39, 40, 41, 79, 80, 640, 1000, 10_000])
@pytest.mark.parametrize("images", [2, 3, 7, 64, 100])
def test_the_first_half_that_fits_is_found(images: int, limit: int) -> None:
    tried: list[int] = []

    def peak_of(number: int) -> Peak:
        tried.append(number)
        return Peak(number, 1, {"activations": 10 * number})

    expected: int | None = images
    while expected is not None and 10 * expected > limit:
        expected = max(expected // 2, 2) if expected > 2 else None
    assert largest_fitting(images, peak_of, limit) == expected
    assert len(tried) <= 5
    assert tried == [images] or 10 * images > limit


def test_a_batch_of_one_fits_or_does_not() -> None:
    assert largest_fitting(1, lambda n: Peak(n, 1, {"activations": n}), 5) == 1
    assert largest_fitting(1, lambda n: Peak(n, 1, {"activations": n}), 0.5) is None


def test_ranks_share_a_batch() -> None:
    assert [largest_share(100, world) for world in (1, 2, 3, 8)] == [100, 50, 34, 14]


def test_what_fits_is_left_as_it_is() -> None:
    answer = answer_memory(TINY, 10, 1, 80)
    assert answer.fits and (answer.micro_batch, answer.eval_batch_size) == (0, 0)
    assert answer.training == answer.most.peak
    assert answer.needs_bytes == answer.training.total
    assert json.loads(json.dumps(answer.as_data()))["training"]["images"] == 64


def test_a_micro_batch_fits_where_the_batch_does_not() -> None:
    prediction = Prediction(TINY, 10)
    sixteen, thirty_two = (prediction.training(64, n, 32).total for n in (16, 32))
    answer = answer_memory(TINY, 10, 1, (sixteen + thirty_two) / 2 / GB, prediction)
    assert not answer.fits and answer.micro_batch == 16
    assert answer.training.total == sixteen
    again = answer_memory(replace(TINY, micro_batch=16), 10, 1, answer.memory_gb)
    assert again.fits and again.training == answer.training


def test_every_phase_fits_with_the_micro_batch_of_the_answer() -> None:
    prediction = Prediction(PHASED, 10)
    limit_gb = prediction.training(64, 32, 32).total * 1.0001 / GB
    answer = answer_memory(PHASED, 10, 1, limit_gb, prediction)
    assert answer.micro_batch == 32
    assert [phase.batch_size for phase in answer.phases] == [512, 256, 64]
    assert answer.most.image_size == 24
    for phase in PHASED.phases:
        peak = prediction.training(phase.batch_size, answer.micro_batch, phase.image_size)
        assert peak.total <= limit_gb * GB


def test_several_ranks_need_less_each() -> None:
    alone, of_four = answer_memory(TINY, 10, 1, 80), answer_memory(TINY, 10, 4, 80)
    assert of_four.training.images == 16
    assert of_four.training.parts["activations"] < alone.training.parts["activations"] / 3


def test_an_evaluation_that_does_not_fit_is_halved_too() -> None:
    recipe = replace(TINY, batch_size=2, eval_batch_size=4096)
    prediction = Prediction(recipe, 10)
    answer = answer_memory(recipe, 10, 1, prediction.evaluation(1024, 32).total / GB, prediction)
    assert (answer.micro_batch, answer.eval_batch_size) == (0, 1024)
    assert not answer.fits


def test_nothing_fits_into_less_than_the_libraries_take() -> None:
    answer = answer_memory(TINY, 10, 1, 0.5)
    assert answer.micro_batch is None and answer.eval_batch_size is None
    assert answer.training.images == 2
