"""The model measured by real steps: bounded in time and memory, refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.loading.loader import Loaded
from stoker.data.packing.pack import pack
from stoker.errors import BadRequest
from stoker.measure.verdict import verdict_of
from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.schedule import one_phase
from stoker.train.model.build import build_model
from stoker.train.process_group import Ranks
from stoker.train.transfer import Copies, DeviceBatch, InPlace
from stoker.train.trials import compute as ceilings
from stoker.train.trials.compute import (
    harmless,
    measure_compute,
    measure_together,
    precisions,
)
from streams import FakeStreams

ALONE = Ranks(0, 1, 0, 1, torch.device("cpu"))
TINY = Recipe(model="resnet9_w1", image_size=16, batch_size=8, mixup_alpha=0.2, ema=True)
ROOM = 1 << 40


def test_a_recipe_is_measured_with_its_own_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "MOST_STEPS", 9)
    (found,) = measure_compute(TINY, 3, ALONE, 3600.0, ROOM)
    assert (found.amp, found.measured_size, found.batch_size) == ("off", 8, 8)
    assert found.steps == 9
    assert found.images_per_s == pytest.approx(8 / found.cost.wall_s)
    assert 0 <= found.fixed.wall_s <= found.cost.wall_s
    assert found.cost.cpu_s > 0


def test_bf16_is_measured_where_it_is_asked_for() -> None:
    asked = Recipe(model="resnet9_w1", image_size=16, batch_size=4, amp="bf16")
    assert [c.amp for c in measure_compute(asked, 3, ALONE, 0.1, ROOM)] == ["off", "bf16"]
    assert precisions(TINY, ALONE.device) == ["off"]


def test_a_batch_that_takes_too_long_is_told_from_smaller_ones() -> None:
    large = Recipe(model="resnet9_w1", image_size=32, batch_size=1 << 14)
    (found,) = measure_compute(large, 3, ALONE, 0.05, ROOM)
    assert 2 <= found.measured_size < found.batch_size == 1 << 14


def test_a_batch_that_does_not_fit_is_refused_before_it_is_tried() -> None:
    large = Recipe(model="resnet9_w16", image_size=64, batch_size=1 << 20)
    with pytest.raises(BadRequest, match=r"1,048,576 images of 64 px .* GB are free: lower"):
        list(measure_compute(large, 3, ALONE, 0.1, 1 << 33))


def test_a_step_without_memory_ends_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def starve(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ceilings.Step, "micro_step", starve)
    with pytest.raises(BadRequest, match="out of memory with 2 images of 16 px"):
        list(measure_compute(TINY, 3, ALONE, 0.1, ROOM))


def test_weights_hardly_move() -> None:
    recipe = harmless(TINY)
    model, normalise = build_model(recipe, 3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trial = ceilings.Trial(recipe, ALONE, model, normalise, 1000)
    for _ in range(3):
        trial.timed(4)
    for name, p in model.named_parameters():
        assert torch.allclose(p, before[name], atol=1e-5), name


def test_the_longest_phase_stands_for_all() -> None:
    phases = (
        Phase(from_epoch=0, image_size=16, batch_size=8),
        Phase(from_epoch=2, image_size=24, batch_size=4),
    )
    found = one_phase(Recipe(epochs=9, phases=phases))
    assert (found.image_size, found.batch_size, found.phases) == (24, 4, ())
    assert one_phase(TINY) is TINY


def test_real_batches_go_through_real_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "MOST_STEPS", 9)
    folder = image_folder(tmp_path / "photos", classes=2, images=10, val=2)
    dataset = Dataset(pack(folder, tmp_path / "packed", workers=1))
    (alone,) = measure_compute(TINY, 2, ALONE, 3600.0, ROOM)
    found = measure_together(dataset, TINY, ALONE, alone, 0.1)
    assert found.steps >= ceilings.STEPS and found.batch_size == 8
    assert found.images_per_s > 0
    assert found.facts is not None and found.facts.steps == found.steps
    assert verdict_of(found.facts) is not None


class PinnedOnly(Copies):
    """Takes batches from a ring's own memory only, and computes where they are."""

    def send(self, loaded: Loaded) -> DeviceBatch:
        assert any(ring.block_of(loaded.images) for ring in self._rings)
        return InPlace().send(loaded)

    def release(self, batch: DeviceBatch) -> None:
        """Nothing was taken."""


def test_steps_are_timed_with_images_in_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = PinnedOnly(FakeStreams(0))
    monkeypatch.setattr("stoker.train.step.transfer_to", lambda device: copies)
    model, normalise = build_model(TINY, 3)
    trial = ceilings.Trial(harmless(TINY), ALONE, model, normalise, 1000)
    for images in (8, 4, 8, 4):
        trial.timed(images)
    assert trial.random_batch(8) is trial.random_batch(8)
    assert trial.random_batch(8).drawn is not None  # once, as if a decoding thread had drawn it
