"""Numbers that are read two steps late, as on a GPU: forced here on a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stoker.data.loading.loader import Loaded
from stoker.measure.spans import Spans
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Timeline
from stoker.run.events import Events
from stoker.survive.divergence import LATE_STEPS, Sentinel
from stoker.survive.remedies import NOT_FINITE, Remedies, Trouble
from stoker.train.device import LateNumbers
from stoker.train.mixing import Mix
from stoker.train.optim import build_optimizer
from stoker.train.process_group import Ranks
from stoker.train.records.step_log import STEPS_BETWEEN_READS, StepLog
from stoker.train.state import TrainState
from stoker.train.step import Step

CPU = torch.device("cpu")
IMAGES, CLASSES = 8, 4
BAD = 3


def to_input(images: Tensor, mix: Mix | None) -> Tensor:
    return images.permute(0, 3, 1, 2).float() / 255


class Model(nn.Module):
    """Gives NaN for black images."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(48, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        factor = torch.where(images.sum() == 0, float("nan"), 1.0)
        logits: Tensor = self.layers(images)
        return logits * factor


def batches(step: Step) -> Iterator[Loaded]:
    draw = np.random.default_rng(0)
    for batch in step.timeline.batches():
        images = draw.integers(1, 256, (IMAGES, 4, 4, 3), dtype=np.uint8)
        if batch.step == BAD:
            images[:] = 0
        samples = np.arange(IMAGES) + batch.step * 100
        labels = draw.integers(0, CLASSES, IMAGES)
        yield Loaded(batch, images, labels, samples, np.zeros(IMAGES, np.int64))


@pytest.fixture
def late_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Step:
    """A step that guards the weights by a flag on the device, and reads norms late."""
    recipe = Recipe(batch_size=IMAGES, image_size=4, epochs=1, lr=0.1, warmup_epochs=0)
    model = Model()
    state = TrainState.fresh(recipe, model, CPU)
    groups = [
        {key: group[key] for key in ("params", "weight_decay")}
        for group in build_optimizer(recipe, model).param_groups
    ]
    state.optimizer = torch.optim.SGD(groups, lr=1.0, momentum=0.9, nesterov=True, fused=True)
    ranks, timeline = Ranks(0, 1, 0, 1, CPU), Timeline.of(recipe, 10 * IMAGES)
    step = Step(recipe, timeline, ranks, state, model, to_input, Remedies(tmp_path))
    step.late_steps, step.sentinel = LATE_STEPS, Sentinel(LATE_STEPS)
    return step


def weights(step: Step) -> Tensor:
    return torch.cat([weight.detach().flatten().clone() for weight in step.parameters])


@pytest.mark.exact
def test_trouble_names_its_own_step_and_shows_its_own_samples(late_step: Step) -> None:
    with pytest.raises(Trouble) as trouble:
        for loaded in batches(late_step):
            late_step(loaded)
    assert (trouble.value.kind, trouble.value.step) == (NOT_FINITE, BAD)
    assert late_step.loaded is not None
    assert late_step.loaded.batch.step == BAD + LATE_STEPS
    evidence = late_step.evidence()
    assert evidence["samples"] == [sample + 100 * BAD for sample in range(IMAGES)]
    assert evidence["gradients_of"] == BAD + LATE_STEPS
    assert len(evidence["labels"]) == IMAGES


@pytest.mark.exact
def test_the_weights_skip_the_bad_step_at_once(late_step: Step) -> None:
    before = weights(late_step)
    for loaded in batches(late_step):
        late_step(loaded)
        after = weights(late_step)
        assert torch.equal(before, after) == (loaded.batch.step == BAD)
        assert after.isfinite().all()
        before = after
        if loaded.batch.step == BAD:
            break


class Later:
    """Numbers of a step that the device has finished only when it says so."""

    def __init__(self, finished: list[bool]) -> None:
        self._finished = finished

    def passed(self) -> bool:
        return self._finished[0]

    def numbers(self) -> Tensor:
        self._finished[0] = True
        return torch.zeros(4, dtype=torch.float64)


def test_only_a_flush_waits_for_the_device(tmp_path: Path) -> None:
    events = Events(tmp_path / "attempts" / "0001" / "rank0.jsonl")
    steps: list[int] = []
    log = StepLog(events, lambda step, loss: steps.append(step))
    finished = [[True], [True], [False], [True]]
    for number, one in enumerate(finished):
        log.step(Later(one), Spans().lap(), step=number, images=1)
    log.flush_finished()
    assert steps == [0, 1]
    log.flush()
    assert steps == [0, 1, 2, 3]
    for number in range(4, 4 + STEPS_BETWEEN_READS):
        log.step(Later([False]), Spans().lap(), step=number, images=1)
    assert steps == [0, 1, 2, 3]
    events.close()


class SlowEvent:
    """An event that passes at the third look."""

    def __init__(self) -> None:
        self.looks = 0

    def record(self) -> None: ...

    def query(self) -> bool:
        self.looks += 1
        return self.looks > 2


def test_the_host_waits_by_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", SlowEvent)
    late: Any = LateNumbers.__new__(LateNumbers)
    late._event, late._numbers = SlowEvent(), torch.ones(4)
    assert not late.passed()
    assert torch.equal(late.numbers(), torch.ones(4))
    assert late._event.looks == 3
