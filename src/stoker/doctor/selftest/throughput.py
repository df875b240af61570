"""Rates: the loader alone, steps alone and both together; kernel launches beside the loader;
evaluation.

Invariant: what is compared is measured within one check, one after the other, on the same device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from stoker.data.loading.chunk_call import WHY_NOT
from stoker.data.loading.crops import Boxes, View
from stoker.data.loading.loader import BatchLoader, Loaded, LoaderOptions, ReadSeconds
from stoker.data.loading.order import InOrder, Ints
from stoker.doctor.selftest.loop_ratio import recipe_of
from stoker.doctor.selftest.rows import Measured, Setup
from stoker.recipe.recipe import Recipe
from stoker.train.device import build_on_device, memory_format, set_arithmetic
from stoker.train.evaluate import Evaluator
from stoker.train.loaders import build_loaders, prepare
from stoker.train.model_input import input_maker
from stoker.train.passes import AMP_TYPES, forward
from stoker.train.transfer import InPlace, transfer_to
from stoker.train.trials.compute import Trial, harmless, measure_together

LAUNCHES, ROUNDS = 300, 20
LEAST_TOGETHER, MOST_LAUNCH, LEAST_EVALUATION = 0.9, 1.5, 0.8
"""Limits on a GPU: of the slower part, of the time without a loader, of a forward pass."""
BUFFERS = 5


def training_recipe(setup: Setup) -> Recipe:
    sizes = setup.sizes
    return recipe_of(setup, "resnet50", sizes.image_size, sizes.batch_size, amp="bf16")


@contextmanager
def loading(setup: Setup, recipe: Recipe) -> Iterator[Iterator[Loaded]]:
    """Endless batches of the set, decoded by the threads of a run."""
    prepared = replace(prepare(setup.dataset, harmless(recipe), setup.ranks), evaluated=None)
    loaders = build_loaders(prepared, prepared.lanes, setup.ranks, InPlace(), lambda note: None)
    try:
        yield loaders.loader.batches(prepared.timeline.batches())
    finally:
        loaders.close()


def loading_rate(setup: Setup, recipe: Recipe) -> float:
    """Images a second of the loader alone, without the first batches."""
    with loading(setup, recipe) as batches:
        for _ in range(BUFFERS):
            next(batches)
        images, began = 0, time.perf_counter()
        while (spent := time.perf_counter() - began) < setup.sizes.seconds or not images:
            images += len(next(batches).labels)
    return images / spent


def measure_feeding(setup: Setup) -> Measured:
    """The loader alone, steps alone, and both."""
    recipe, seconds = training_recipe(setup), setup.sizes.seconds
    alone = loading_rate(setup, recipe)
    trial_recipe = harmless(recipe)
    classes, samples = len(setup.dataset.classes), len(setup.dataset.split("train"))
    model, normalise = build_on_device(trial_recipe, classes, setup.ranks.device)
    compute = Trial(trial_recipe, setup.ranks, model, normalise, samples).measure(seconds)
    together = measure_together(setup.dataset, recipe, setup.ranks, compute, seconds)
    steps, both = compute.images_per_s, together.images_per_s
    ratio = both / min(alone, steps)
    value = (
        f"{both:,.0f} images/s together: {ratio:.2f} of the slower (loader {alone:,.0f}, steps "
        f"{steps:,.0f}; {recipe.model})"
    )
    figures = {"loader": alone, "compute": steps, "together": both, "ratio": ratio}
    if not setup.on_gpu:  # both want the same cores
        return Measured(value, figures=figures)
    return Measured(value, f"at least {LEAST_TOGETHER}", ratio >= LEAST_TOGETHER, figures)


def launch_ms(counter: torch.Tensor, finish: Callable[[], None]) -> float:
    """Milliseconds of the host for some small launches."""
    finish()
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        counter.add_(1)
    return 1000 * (time.perf_counter() - began)


def measure_launches(setup: Setup) -> Measured:
    """Launches while decoding threads work, against launches without them."""
    counter = torch.zeros(1, device=setup.ranks.device)
    alone = [launch_ms(counter, setup.finish) for _ in range(ROUNDS)]
    beside = []
    with loading(setup, training_recipe(setup)) as batches:
        for _ in range(ROUNDS):
            next(batches)  # so that there is room for one more, which threads now decode
            beside.append(launch_ms(counter, setup.finish))
    alone_ms, beside_ms = statistics.median(alone), statistics.median(beside)
    ratio = beside_ms / alone_ms
    region = "without the compiled extra" if WHY_NOT else "with the compiled extra"
    value = f"{beside_ms:.2f} ms for {LAUNCHES} launches, {ratio:.2f} times as long as alone "
    value += f"({alone_ms:.2f} ms; {region})"
    figures = {"beside_ms": beside_ms, "alone_ms": alone_ms, "ratio": ratio}
    if not setup.on_gpu:
        return Measured(value, figures=figures)
    return Measured(value, f"at most {MOST_LAUNCH} times", ratio <= MOST_LAUNCH, figures)


@dataclass(frozen=True)
class Around(InOrder):
    """The arrangement of evaluation, over and over."""

    samples: int

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]:
        samples, epochs = super().part(position, size, begin, end)
        return samples % self.samples, epochs


@dataclass(frozen=True)
class RepeatedEvaluator(Evaluator):
    """Evaluates a split several times over."""

    rounds: int = 1

    @property
    def images(self) -> int:
        return self.rounds * len(self.loader.split)


def undecoded(loaded: Loaded, crops: Boxes | None, start: int, stop: int) -> ReadSeconds:
    loaded.images[start:stop] = np.uint8(127)
    return 0.0, 0.0


def forward_rate(setup: Setup, recipe: Recipe, model: torch.nn.Module) -> float:
    """Images a second of training's forward pass, with images that are on the device."""
    shape = (recipe.batch_size, 3, recipe.image_size, recipe.image_size)
    dtype = AMP_TYPES.get(recipe.amp, torch.float32) if setup.on_gpu else torch.float32
    images = torch.zeros(shape, dtype=dtype, device=setup.ranks.device)
    images = images.to(memory_format=memory_format(recipe))
    model.train()
    forward(model, images, recipe.amp)
    setup.finish()
    passes, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < setup.sizes.seconds / 2 or passes < 2:
        for _ in range(5 if setup.on_gpu else 1):
            forward(model, images, recipe.amp)
            passes += 1
        setup.finish()
    return passes * recipe.batch_size / spent


def measure_evaluation(setup: Setup) -> Measured:
    """An evaluation of batches that need no decoding, against training's forward pass."""
    recipe, ranks = training_recipe(setup), setup.ranks
    set_arithmetic(recipe)
    split, classes = setup.dataset.split("train"), len(setup.dataset.classes)
    model, normalise = build_on_device(recipe, classes, ranks.device)
    passing = forward_rate(setup, recipe, model)
    transfer = transfer_to(ranks.device)
    options = LoaderOptions(memory=partial(transfer.memory, BUFFERS), fill=undecoded)
    loader = BatchLoader(split, Around(len(split)), View(), options=options)
    rounds = max(1, round(passing * setup.sizes.seconds / len(split)))
    amp = recipe.amp if setup.on_gpu else "off"
    once = RepeatedEvaluator(loader, ranks, recipe.batch_size, amp, transfer)
    to_input = input_maker(normalise, ranks.device, recipe.channels_last, recipe.amp)
    try:
        for evaluator in (once, replace(once, rounds=rounds)):  # the first chooses kernels
            began = time.perf_counter()
            accuracy = evaluator.run(model, recipe.image_size, to_input)
            spent = time.perf_counter() - began
    finally:
        loader.close()
    assert accuracy is not None
    rate = accuracy.images / spent
    ratio = rate / passing
    value = f"{rate:,.0f} images/s, {ratio:.2f} of training's forward pass ({passing:,.0f})"
    figures = {"images_per_s": rate, "forward_images_per_s": passing, "ratio": ratio}
    if not setup.on_gpu:
        return Measured(value, figures=figures)
    return Measured(value, f"at least {LEAST_EVALUATION}", ratio >= LEAST_EVALUATION, figures)
