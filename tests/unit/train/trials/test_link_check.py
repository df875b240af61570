"""A model that is too slow for a run is told before its first step, with the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bits import same
from stoker.measure.ports import BACKWARD, COSTLY, exposed_share
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline
from stoker.survive.remedies import Remedies
from stoker.train.model.build import build_model
from stoker.train.model_input import input_maker
from stoker.train.process_group import Ranks
from stoker.train.state import TrainState
from stoker.train.step import Step
from stoker.train.trials import link_check as preflight
from stoker.train.trials.link_check import FEW_IMAGES, LONG_S, computing_s, too_slow

CPU = torch.device("cpu")
MBIT = 1e6 / 8
MakeStep = Callable[..., Step]


@pytest.fixture
def make_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeStep:
    monkeypatch.setattr(preflight, "max_over_ranks", lambda numbers: list(numbers))

    def make(world: int = 2, rank: int = 0, batch: int = 64, micro_batch: int = 0) -> Step:
        recipe = Recipe(
            model="resnet9_w4", batch_size=batch, image_size=24, epochs=1, micro_batch=micro_batch
        )
        model, normalise = build_model(recipe, classes=4)
        state = TrainState.fresh(recipe, model, CPU)
        ranks = Ranks(rank=rank, world=world, local_rank=0, local_world=1, device=CPU)
        to_input = input_maker(normalise, CPU, recipe.channels_last)
        timeline = Timeline.of(recipe, 20 * batch)
        return Step(recipe, timeline, ranks, state, model, to_input, Remedies(tmp_path))

    return make


@pytest.fixture
def seconds_an_image(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], list[int]]:
    """Let a pass take so long; the sizes of the passes that are made."""

    def let(seconds: float) -> list[int]:
        seen: list[int] = []

        def passes(step: Step, images: Tensor) -> float:
            seen.append(len(images))
            return seconds * len(images)

        monkeypatch.setattr(preflight, "time_pass", passes)
        return seen

    return let


def gradient_bytes(step: Step) -> int:
    return sum(p.numel() * 4 for p in step.state.model.parameters())


@pytest.mark.parametrize(
    ("world", "batch", "rank", "micro_batch", "share"),
    [(2, 64, 0, 0, 32), (3, 64, 2, 0, 22), (2, 8, 1, 0, 4), (2, 64, 0, 8, 32)],
)
def test_the_time_is_that_of_the_share_of_a_rank(
    make_step: MakeStep,
    seconds_an_image: Callable[[float], list[int]],
    world: int,
    batch: int,
    rank: int,
    micro_batch: int,
    share: int,
) -> None:
    seen = seconds_an_image(0.001)
    step = make_step(world, rank, batch, micro_batch)
    assert computing_s(step, step.timeline.batch_of_step(0)) == pytest.approx(0.001 * share)
    assert max(seen) == min(micro_batch or share, share)


def test_a_long_step_is_told_from_a_few_images(
    make_step: MakeStep, seconds_an_image: Callable[[float], list[int]]
) -> None:
    seen = seconds_an_image(LONG_S)
    step = make_step(batch=256)
    assert computing_s(step, step.timeline.batch_of_step(0)) == pytest.approx(LONG_S * 128)
    assert set(seen) == {FEW_IMAGES}


@pytest.mark.parametrize(("fits", "seconds"), [(FEW_IMAGES, 0.128), (0, math.inf)])
def test_so_is_one_that_finds_no_memory(
    make_step: MakeStep, monkeypatch: pytest.MonkeyPatch, fits: int, seconds: float
) -> None:
    """Where there is none even for a few, nothing is asked: the first step deals with it."""

    def passes(step: Step, images: Tensor) -> float:
        if len(images) > fits:
            raise torch.OutOfMemoryError
        return 0.001 * len(images)

    monkeypatch.setattr(preflight, "time_pass", passes)
    step = make_step(batch=256)
    assert computing_s(step, step.timeline.batch_of_step(0)) == pytest.approx(seconds)
    assert bool(too_slow(step, 1000.0, 0.0)) is (fits > 0)


def test_only_the_last_micro_batch_hides_the_exchange(
    make_step: MakeStep, seconds_an_image: Callable[[float], list[int]]
) -> None:
    seconds_an_image(0.01)
    whole, parts = make_step(), make_step(micro_batch=8)
    exchange_s = 0.2
    assert exposed_share(exchange_s, 0.32) == 0
    assert exposed_share(exchange_s, 0.32, 8 / 32) > COSTLY
    rate = gradient_bytes(whole) / exchange_s
    assert too_slow(whole, rate, 0.0) == ""
    assert too_slow(parts, rate, 0.0)


@pytest.mark.parametrize(("exposed", "asked"), [(0.19, False), (0.21, True)])
def test_a_fifth_of_a_step_is_too_much(
    make_step: MakeStep,
    seconds_an_image: Callable[[float], list[int]],
    exposed: float,
    asked: bool,
) -> None:
    seconds_an_image(0.01)
    step = make_step()
    compute_s = 0.32
    exchange_s = BACKWARD * compute_s + exposed / (1 - exposed) * compute_s
    assert exposed_share(exchange_s, compute_s) == pytest.approx(exposed)
    # Two ranks send a gradient once.
    assert bool(too_slow(step, gradient_bytes(step) / exchange_s, 0.0)) is asked


def test_the_words_have_the_port_the_numbers_and_a_way_on(
    make_step: MakeStep, seconds_an_image: Callable[[float], list[int]]
) -> None:
    seconds_an_image(0.001)
    step = make_step()
    size = gradient_bytes(step)
    words = too_slow(step, 9.5 * MBIT, 1e-9)
    assert f"a gradient of {size / 1e6:.3g} MB at 10 Mbit/s" in words
    assert "looks like a 10 Mbit/s port" in words
    assert "0.032 s to compute a step" in words
    assert "a port of 100 Mbit/s would hide it" in words
    assert words.endswith("--yes trains anyway")


def test_a_busy_processor_is_no_port(
    make_step: MakeStep, seconds_an_image: Callable[[float], list[int]]
) -> None:
    seconds_an_image(0.0001)
    words = too_slow(make_step(), 9.5 * MBIT, 0.9 / (9.5 * MBIT))
    assert words
    assert "looks like" not in words


def test_trying_leaves_no_trace(make_step: MakeStep) -> None:
    step = make_step()
    before = {name: tensor.clone() for name, tensor in step.state.model.state_dict().items()}
    assert computing_s(step, step.timeline.batch_of_step(0)) > 0
    assert same(before, step.state.model.state_dict())
    assert all(p.grad is None for p in step.state.model.parameters())
