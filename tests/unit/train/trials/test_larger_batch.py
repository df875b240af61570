"""Trying a larger batch says what it would spare, and leaves no trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bits import same
from samples import image_folder
from stoker.data.images.encode import Storage
from stoker.data.loading.loader import Loaded
from stoker.data.packing.pack import pack
from stoker.measure.facts import LARGER
from stoker.measure.facts_from_events import AttemptSums
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import resolve
from stoker.recipe.schedule import Timeline
from stoker.run.directory import Run
from stoker.run.events import Event
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.remedies import Remedies
from stoker.train.attempt.end import FINISHED
from stoker.train.attempt.session import train
from stoker.train.mixing import Mix
from stoker.train.passes import AMP_TYPES
from stoker.train.process_group import Ranks
from stoker.train.records import verdicts as watch
from stoker.train.state import TrainState
from stoker.train.step import Step
from stoker.train.trials.larger_batch import LEAST_TRIALS, MOST_TRIALS, SECONDS, larger_batch
from tiny_runs import FLAGS

CPU = torch.device("cpu")
CLASSES, SIDE = 3, 8


class TracedModel(nn.Module):
    """Statistics, chance and weights: all that a pass may change. Tells the sizes it has seen."""

    def __init__(self, pause: Callable[[int], None] = lambda images: None) -> None:
        super().__init__()
        self.pause = pause
        self.seen: list[int] = []
        torch.manual_seed(3)
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.GroupNorm(2, 4),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.LazyLinear(CLASSES),
        )
        self.layers(torch.zeros(2, 3, SIDE, SIDE))

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(len(images))
        self.pause(len(images))
        out: Tensor = self.layers(images)
        return out


def to_input(images: Tensor, mix: Mix | None) -> Tensor:
    return images.permute(0, 3, 1, 2).float() / 255


ROOM = 1 << 40
MakeStep = Callable[..., Step]


@pytest.fixture
def make_step(tmp_path: Path) -> MakeStep:
    def make(custom: nn.Module | None = None, batch: int = 16, **changes: Any) -> Step:
        recipe = Recipe(batch_size=batch, image_size=SIDE, epochs=1, lr=0.05, **changes)
        model = custom or TracedModel()
        timeline = Timeline.of(recipe, 20 * batch)
        state = TrainState.fresh(recipe, model, CPU)
        ranks = Ranks(0, 1, 0, 1, CPU)
        return Step(recipe, timeline, ranks, state, model, to_input, Remedies(tmp_path))

    return make


def batches(step: Step, count: int) -> list[Loaded]:
    """The first batches, of random images."""
    draw, found = np.random.default_rng(5), []
    for batch, _ in zip(step.timeline.batches(), range(count), strict=False):
        images = draw.integers(0, 256, (batch.size, SIDE, SIDE, 3), dtype=np.uint8)
        labels, numbers = draw.integers(0, CLASSES, batch.size), np.arange(batch.size)
        found.append(Loaded(batch, images, labels, numbers, numbers * 0))
    return found


def everything(step: Step) -> dict[str, Any]:
    """All that a later step could depend on."""
    state, model = step.state, step.state.model
    return {
        "weights": {k: v.clone() for k, v in model.state_dict().items()},
        "gradients": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "asked for": [p.requires_grad for p in model.parameters()],
        "mode": [module.training for module in model.modules()],
        "snapshot": vars(state.snapshot({})),
        "place": (state.position, state.step),
    }


KINDS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "adamw, averaged": {"optimizer": "adamw", "ema": True},
    "accumulated, bf16": {"micro_batch": 4, "amp": "bf16"},
    "mixed, clipped": {"mixup_alpha": 0.4, "cutmix_prob": 0.5, "clip_grad": 1.0},
}


class TestTrace:
    @pytest.mark.parametrize("kind", KINDS)
    def test_none_is_left_in_the_state(self, make_step: MakeStep, kind: str) -> None:
        step = make_step(**KINDS[kind])
        for loaded in batches(step, 3):
            step(loaded)
        before = everything(step)
        images = step.loaded.images.copy() if step.loaded else None
        larger_batch(step, ROOM)
        assert same(everything(step), before)
        assert step.loaded is not None and np.array_equal(step.loaded.images, images)

    @pytest.mark.parametrize("kind", KINDS)
    def test_steps_go_on_as_if_nothing_had_been_tried(self, make_step: MakeStep, kind: str) -> None:
        tried, plain = (make_step(TracedModel(), **KINDS[kind]) for _ in range(2))
        for loaded in batches(plain, 6):
            assert same(tried(loaded).numbers(), plain(loaded).numbers())
            larger_batch(tried, ROOM)
            assert same(everything(tried), everything(plain))

    @pytest.mark.parametrize("trouble", [MemoryError, RuntimeError, torch.OutOfMemoryError])
    def test_none_is_left_where_a_pass_fails(
        self, make_step: MakeStep, trouble: type[Exception]
    ) -> None:
        model = TracedModel()
        step = make_step(model)
        step(batches(step, 1)[0])
        before = everything(step)

        def fail_in_the_end(images: int) -> None:
            if len(model.seen) > 4:
                raise trouble("not enough")

        model.seen.clear()
        model.pause = fail_in_the_end
        with pytest.raises(trouble):
            larger_batch(step, ROOM)
        assert len(model.seen) == 5
        assert same(everything(step), before)

    def test_nothing_is_tried_that_memory_does_not_hold(self, make_step: MakeStep) -> None:
        model = TracedModel()
        step = make_step(model)
        step(batches(step, 1)[0])
        model.seen.clear()
        assert larger_batch(step, free_bytes=1000) is None
        assert model.seen == [16]


@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
def test_every_pass_of_the_trial_is_in_the_precision_of_the_recipe(
    make_step: MakeStep, amp: str
) -> None:
    types: list[torch.dtype | None] = []

    def note_precision(images: int) -> None:
        enabled = torch.is_autocast_enabled("cpu")
        types.append(torch.get_autocast_dtype("cpu") if enabled else None)

    step = make_step(TracedModel(note_precision), amp=amp)
    step.loaded = batches(step, 1)[0]
    larger_batch(step, ROOM)
    assert len(types) > 2 * LEAST_TRIALS
    assert set(types) == {AMP_TYPES.get(amp)}


def test_half_precision_is_counted_with_half_the_memory(make_step: MakeStep) -> None:
    def needed(amp: str) -> int:
        """The smallest free memory, of some, with which the trial is made."""
        step = make_step(TracedModel(), amp=amp)
        step.loaded = batches(step, 1)[0]
        sizes = range(10_000, 2_000_000, 10_000)
        return next(size for size in sizes if larger_batch(step, size, Clock(0.1, 0.1)))

    assert needed("bf16") < 0.8 * needed("off")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    photos = image_folder(root / "photos", images=40, val=5, size=(8, 8), suffix="png")
    return pack(photos, root / "set", storage=Storage(codec="raw"), val_share=0, workers=1)


class TestWholeRuns:
    @pytest.fixture(autouse=True)
    def alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")

    def trained(self, data: Path, run: Path, **changes: Any) -> tuple[list[Event], dict[str, Any]]:
        """Steps and evaluations, and what the last checkpoint holds."""
        assert train(data, resolve(flags={**FLAGS, "epochs": 3, **changes}), run) == FINISHED
        found, _ = Checkpoints(run).newest()
        assert found is not None
        kept = {"weights": found.weights, "ema": found.ema, "state": found.state}
        return list(Run(run).events()), kept

    @pytest.mark.parametrize(
        "changes",
        [{}, {"optimizer": "adamw", "lr": 0.001, "ema": True}],
        ids=["sgd", "adamw, averaged"],
    )
    def test_with_and_without_the_trial_are_equal_to_the_bit(
        self,
        data: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        changes: dict[str, Any],
    ) -> None:
        monkeypatch.setattr(watch, "SHORT_STEP_S", 1e9)
        tried, with_trial = self.trained(data, tmp_path / "tried", **changes)
        monkeypatch.setattr(watch, "SHORT_STEP_S", 0)
        plain, without = self.trained(data, tmp_path / "plain", **changes)
        trials = [[e for e in events if e["kind"] == "larger_batch"] for events in (tried, plain)]
        assert [len(found) for found in trials] == [1, 0]
        assert trials[0][0]["seconds"] > 0 and trials[0][0]["larger_s"] > 0
        keys = ("kind", "step", "position", "lr", "sums", "norm", "top1", "loss")
        steps = [
            [[e.get(key) for key in keys] for e in events if e["kind"] in ("step", "evaluation")]
            for events in (tried, plain)
        ]
        assert len(steps[0]) > watch.STEPS_BEFORE_TRIAL
        assert steps[0] == steps[1]
        assert same(with_trial, without)
        measuring = [e["parts"].get("measuring", 0) for e in tried if e["kind"] == "step"]
        assert sum(seconds > 0 for seconds in measuring) == 1

    def test_a_model_with_weights_that_it_does_not_use_is_trained(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from stoker.train import loaders as feeding

        build = feeding.build_on_device

        def with_a_spare_weight(*given: Any) -> Any:
            model, normalise = build(*given)
            model.spare = nn.Parameter(torch.zeros(2))
            return model, normalise

        monkeypatch.setattr(feeding, "build_on_device", with_a_spare_weight)
        monkeypatch.setattr(watch, "SHORT_STEP_S", 1e9)
        self.trained(data, tmp_path / "run")


class Clock:
    """A clock that moves only with the work of a model."""

    def __init__(self, anyway_s: float, per_image_s: float) -> None:
        self.now, self.anyway_s, self.per_image_s = 50.0, anyway_s, per_image_s

    def __call__(self) -> float:
        return self.now

    def model(self) -> TracedModel:
        return TracedModel(self.work)

    def work(self, images: int) -> None:
        self.now += self.anyway_s + images * self.per_image_s


def in_larger(found: tuple[float, float] | None) -> float | None:
    """What an event of a trial says to whoever judges the run."""
    assert found is not None
    seen = AttemptSums()
    seen.add(0, {"kind": "larger_batch", "step": 15, "seconds": found[0], "larger_s": found[1]})
    return seen.in_larger


class TestCost:
    @pytest.mark.parametrize("batch", [2, 3, 16, 33])
    @pytest.mark.parametrize(
        ("anyway_s", "per_image_s"), [(0.0, 0.01), (0.2, 0.0), (0.2, 0.001), (0.01, 0.1)]
    )
    def test_is_the_time_of_both_batches(
        self,
        make_step: MakeStep,
        batch: int,
        anyway_s: float,
        per_image_s: float,
    ) -> None:
        clock = Clock(anyway_s, per_image_s)
        model = clock.model()
        step = make_step(model, batch=batch)
        step(batches(step, 1)[0])
        model.seen.clear()
        found = larger_batch(step, ROOM, clock)
        assert found == pytest.approx(
            (anyway_s + batch * per_image_s, anyway_s + LARGER * batch * per_image_s)
        )
        both_s = sum(found or ())
        first, *seen = model.seen
        trials = len(seen) // 2 - 1
        assert first == batch  # to see what it keeps in memory
        assert seen == [batch, LARGER * batch] * (trials + 1)
        # As many as there is time for, within bounds.
        assert LEAST_TRIALS <= trials <= MOST_TRIALS
        assert trials in (LEAST_TRIALS, MOST_TRIALS) or abs(trials * both_s - SECONDS) <= 2 * both_s
        # A larger batch pays once for what each of the small ones pays.
        whole = anyway_s + batch * per_image_s
        assert in_larger(found) == pytest.approx(1 - anyway_s * (1 - 1 / LARGER) / whole)

    def test_of_a_batch_of_one_is_found_too(self, make_step: MakeStep) -> None:
        clock = Clock(0.2, 0.01)
        step = make_step(clock.model(), batch=1)
        step(batches(step, 1)[0])
        assert larger_batch(step, ROOM, clock) == pytest.approx((0.21, 0.28))

    def test_is_never_more_than_before(self, make_step: MakeStep) -> None:
        clock = Clock(0.0, 0.01)
        step = make_step(TracedModel(lambda images: clock.work(images * images)))
        step(batches(step, 1)[0])
        # The time grows with the square of the images.
        assert in_larger(larger_batch(step, ROOM, clock)) == 1

    def test_by_a_real_clock_tells_the_two_kinds_apart(self, make_step: MakeStep) -> None:
        def share(anyway_s: float, per_image_s: float) -> float:
            step = make_step(
                TracedModel(lambda images: time.sleep(anyway_s + per_image_s * images))
            )
            step(batches(step, 1)[0])
            return in_larger(larger_batch(step, ROOM)) or 0.0

        # The best of some: a busy machine may keep anyone waiting now and then.
        assert any(share(0.1, 0.0) < 0.4 for _ in range(5))
        assert any(share(0.0, 0.1 / 16) > 0.6 for _ in range(5))
