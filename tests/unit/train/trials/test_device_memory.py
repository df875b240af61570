"""Predicted memory is the memory that real steps allocate, and predicting takes none."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from golden import check_golden
from shares import share
from stoker.errors import BadRequest
from stoker.host.limits import resident_memory
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import preset_names, resolve
from stoker.train.passes import forward
from stoker.train.trials import device_memory
from stoker.train.trials.device_memory import (
    ACTIVATIONS,
    ALLOCATOR,
    AVERAGE,
    GRADIENTS,
    INPUT,
    LIBRARIES,
    OPTIMISER,
    TEMPORARIES,
    WEIGHTS,
    CudaPrecision,
    NeedsNumbers,
    Peak,
    Prediction,
    StorageMeter,
    fill_with_fakes,
    refuse_too_large,
)

TINY = Recipe(model="resnet9_w4", image_size=32, batch_size=32)
CELLS: dict[str, dict[str, Any]] = {
    "fp32, sgd": {},
    "bf16, sgd": {"amp": "bf16"},
    "fp32, adamw, average": {"optimizer": "adamw", "ema": True},
    "bf16, adamw, average": {"amp": "bf16", "optimizer": "adamw", "ema": True},
    "four times the images": {"batch_size": 128},
    "mixed, clipped": {"mixup_alpha": 0.2, "cutmix_prob": 0.5, "clip_grad": 1.0},
    "accumulated": {"batch_size": 128, "micro_batch": 32},
    "channels first": {"channels_last": False},
    "no momentum": {"momentum": 0.0},
    "resnet18": {"model": "resnet18", "batch_size": 16},
    "attention": {"model": "vit_tiny_patch16_224", "image_size": 224, "batch_size": 2},
}


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[4] / "benchmarks" / "memory.py"
    spec = importlib.util.spec_from_file_location("memory_benchmark", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def trained(recipe: Recipe, **options: Any) -> Peak:
    """The peak of a step of the recipe's batch at once."""
    prediction = Prediction(recipe, 10, **options)
    return prediction.training(recipe.batch_size, recipe.batch_size, recipe.image_size)


# Counts of this process's own allocator: no neighbour changes them.
@pytest.mark.parametrize("name", share("memory of a step", list(CELLS), 2))
def test_it_is_within_a_tenth_of_real_allocations(benchmark: ModuleType, name: str) -> None:
    cell = benchmark.compare(replace(TINY, **CELLS[name]))
    assert cell.ratio_without_scratch == pytest.approx(1, abs=0.1), cell
    # oneDNN's scratch memory is small for models without depthwise convolutions.
    assert cell.ratio == pytest.approx(1, abs=0.1), cell


def test_scratch_memory_of_convolutions_is_told_apart(benchmark: ModuleType) -> None:
    # A block of 100 lasts, one of 7 lives inside the convolution from 2 to 5, one of 3 outside.
    changes = [(1, 50), (2, 100), (3, 7), (4, -7), (6, 3), (7, -3)]
    assert benchmark.peaks_of(changes, [(2, 5)]) == (157, 153)
    assert benchmark.peaks_of(changes, []) == (157, 157)
    assert benchmark.peaks_of([(0, 9)], [(1, 2)]) == (9, 9)


class TestMeter:
    def test_a_storage_counts_once_and_while_it_lives(self) -> None:
        with StorageMeter() as meter:
            whole = torch.zeros(1000)
            views = [whole[:10], whole.view(10, 100), whole.t()]
            other = whole + 1
            assert sum(meter.sums.values()) == 8000
            del other
            assert sum(meter.sums.values()) == 4000
            del whole, views
        assert sum(meter.sums.values()) == 0
        assert meter.peak[TEMPORARIES] == 8000

    def test_a_temporary_storage_may_become_another_kind_once(self) -> None:
        with StorageMeter() as meter:
            kept = meter.add(torch.zeros(1000), ACTIVATIONS)
            meter.add(kept, GRADIENTS)
            assert (meter.sums[TEMPORARIES], meter.sums[ACTIVATIONS]) == (0, 4000)
            assert meter.sums[GRADIENTS] == 0


class TestParts:
    def test_what_each_setting_adds(self) -> None:
        plain, weights = trained(TINY).parts, 4 * sum(p.numel() for p in model(TINY).parameters())
        adamw = trained(replace(TINY, optimizer="adamw", ema=True)).parts
        assert weights <= plain[WEIGHTS] <= 1.05 * weights  # and running statistics
        assert plain[OPTIMISER] == weights
        assert 2 * weights <= adamw[OPTIMISER] <= 2.05 * weights  # and counters of steps
        assert (plain[AVERAGE], adamw[AVERAGE]) == (0, plain[WEIGHTS])
        # Two batches of bytes, one of 32-bit numbers, the labels.
        assert plain[INPUT] == 32 * (32 * 32 * 3 * (2 + 4) + 8)
        assert plain[ALLOCATOR] > 0 and plain[LIBRARIES] == 10**9

    def test_ranks_and_accumulation_hold_the_whole_gradient(self) -> None:
        alone, of_two = trained(TINY), trained(TINY, world=2)
        weights = alone.parts[OPTIMISER]
        assert alone.parts[GRADIENTS] < weights == of_two.parts[GRADIENTS]
        assert of_two.parts[LIBRARIES] > alone.parts[LIBRARIES]
        halves = Prediction(TINY, 10).training(32, 16, 32)
        assert halves.parts[GRADIENTS] == weights
        assert halves.parts[ACTIVATIONS] < 0.6 * alone.parts[ACTIVATIONS]
        # Both halves of the batch come from the same buffers of bytes.
        assert halves.parts[INPUT] == 2 * 32 * 32 * 32 * 3 + 16 * (32 * 32 * 3 * 4 + 8)

    @pytest.mark.parametrize("amp", ["bf16", "fp16"])
    def test_half_precision_keeps_about_half_the_activations(self, amp: str) -> None:
        whole, half = (trained(replace(TINY, amp=each)).parts for each in ("off", amp))
        # The indices of max pooling stay as they are, and weights are copied to 16 bits.
        assert 0.5 < half[ACTIVATIONS] / whole[ACTIVATIONS] < 0.65
        assert half[WEIGHTS] == whole[WEIGHTS]
        assert whole[INPUT] - half[INPUT] == 32 * 32 * 32 * 3 * 2
        assert trained(replace(TINY, amp="tf32")).parts == whole

    def test_an_evaluation_keeps_no_activations(self) -> None:
        prediction = Prediction(TINY, 10)
        evaluation, step = prediction.evaluation(32, 32), prediction.training(32, 32, 32)
        assert evaluation.parts[ACTIVATIONS] == 0 < evaluation.parts[TEMPORARIES]
        assert evaluation.total < step.total
        assert prediction.training(32, 32, 32).parts == step.parts  # and training is as before

    def test_frozen_weights_have_no_gradient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shapes = device_memory.model_of_shapes

        def frozen(recipe: Recipe, classes: int) -> nn.Module:
            made = shapes(recipe, classes)
            for weight in made.features.parameters():  # type: ignore[union-attr]
                weight.requires_grad = False
            return made

        monkeypatch.setattr(device_memory, "model_of_shapes", frozen)
        parts = trained(TINY, world=2).parts
        head = 4 * (TINY_FEATURES * 10 + 10)
        assert parts[OPTIMISER] == parts[GRADIENTS] == head


TINY_FEATURES = 8 * 4


def model(recipe: Recipe) -> nn.Module:
    return device_memory.model_of_shapes(recipe, 10)


def test_weights_that_two_modules_share_stay_shared() -> None:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    pair = nn.Sequential(first, second)
    fill_with_fakes(pair, torch.contiguous_format)
    assert pair[0].weight is pair[1].weight
    assert len(list(pair.parameters())) == 3


def test_norms_and_softmax_are_computed_in_32_bits_as_on_cuda() -> None:
    images = torch.zeros(2, 3, 4, 4)
    for layer in (nn.LayerNorm(2), nn.GroupNorm(1, 4), nn.Softmax(1)):
        block = nn.Sequential(nn.Conv2d(3, 4, 3), layer)
        with torch.autocast("cpu", torch.bfloat16), CudaPrecision():
            assert block(images).dtype == torch.float32
            assert functional.relu(block[0](images)).dtype == torch.bfloat16
    with CudaPrecision():
        assert forward(nn.BatchNorm2d(3), images, "off").dtype == torch.float32


def test_an_image_size_that_the_model_refuses_is_refused() -> None:
    with pytest.raises(BadRequest, match="use --image-size 224"):
        Prediction(Recipe(model="vit_tiny_patch16_224", image_size=160), 10)


class Choosy(nn.Module):
    """Chooses its way by the numbers in its input."""

    def __init__(self, when: bool, classes: int) -> None:
        super().__init__()
        self.when, self.head = when, nn.Linear(3, classes, device="meta")

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(images.mean((2, 3)))
        return -logits if self.training == self.when and logits.sum() > 0 else logits


@pytest.mark.parametrize("when", [True, False])
def test_a_model_that_needs_numbers_is_refused(monkeypatch: pytest.MonkeyPatch, when: bool) -> None:
    shapes = lambda recipe, classes: Choosy(when, classes)  # noqa: E731
    monkeypatch.setattr(device_memory, "model_of_shapes", shapes)
    with pytest.raises(NeedsNumbers) as refused:
        trained(TINY)
    check_golden("train_device_memory", [str(refused.value)])
    refuse_too_large(TINY, 10, 1)  # which does not guess


def test_what_does_not_fit_is_refused_with_what_does() -> None:
    needed = trained(TINY, gpu=False).total
    refuse_too_large(TINY, 10, needed)
    refuse_too_large(replace(TINY, batch_size=1), 10, needed)
    free = needed * 3 // 4
    with pytest.raises(BadRequest, match="lower --batch-size") as refused:
        refuse_too_large(TINY, 10, free)
    fits = re.search(r"--micro-batch to (\d+)", str(refused.value))
    assert fits is not None and 16 <= int(fits.group(1)) < 32
    refuse_too_large(replace(TINY, micro_batch=int(fits.group(1))), 10, free)
    with pytest.raises(BadRequest, match="to 2, or --image-size"):
        refuse_too_large(TINY, 10, 1)


# A share for each commit: a ResNet-152 takes seconds to walk through.
@pytest.mark.parametrize("name", share("presets on a GPU", preset_names(), 3))
def test_a_preset_is_predicted_without_its_memory(name: str) -> None:
    recipe = resolve(name).recipe
    phase = recipe.phases[0] if recipe.phases else recipe
    prediction = Prediction(recipe, 1000)
    before = resident_memory()
    peak = prediction.training(phase.batch_size, phase.batch_size, phase.image_size)
    assert peak.total > 10**9
    assert resident_memory() - before < min(peak.total, 10**9) / 4
