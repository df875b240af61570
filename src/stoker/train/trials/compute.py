"""What the network can do by itself, and with the loader at its side.

Invariants: a step is the real `Step`, with the recipe's network, optimiser, precision, mixing and
averaging; only the learning rate is next to nothing, so that noise for images cannot make it
diverge. Batches grow from two images upward: what is too slow is measured with smaller ones and
says so; what does not fit into memory is refused with a sentence before it is tried.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

from stoker.data.dataset import Dataset
from stoker.data.loading.loader import Loaded
from stoker.errors import BadRequest
from stoker.host.limits import usable_cores
from stoker.measure.clocks import clock_of
from stoker.measure.facts import Facts
from stoker.measure.facts_from_events import WARM_UP, AttemptSums
from stoker.measure.spans import Lap, Spans, shares_of
from stoker.measure.trials.forecast import Cost, fixed_s, for_batch, spread
from stoker.recipe.recipe import Recipe
from stoker.recipe.schedule import Batch, Timeline
from stoker.survive.remedies import Remedies
from stoker.survive.trouble import Trouble
from stoker.train.device import input_maker, set_arithmetic
from stoker.train.loaders import feed, prepare
from stoker.train.model.build import Normalise, build_model
from stoker.train.process_group import Ranks
from stoker.train.state import TrainState
from stoker.train.step import Step
from stoker.train.trials.memory import free_on, refuse_too_large

STEPS = 5
"""Steps that are timed, at least; a GPU's are timed in groups of so many."""
MOST_STEPS = 60
MOST_DISTURBED = 3.0
"""How many times as long others may make a step, as far as we make up for it."""
TOO_UNEVEN = 0.3
"""The spread of steps above which nothing is told from a difference of two of them."""
NOWHERE = Path("no-run")
"""There is no run, and so no remedies in it."""


@dataclass(frozen=True)
class Compute:
    """Steps over images that are in memory already, in one precision."""

    amp: str
    measured_size: int
    """Images in the batches that were timed."""
    steps: int
    cost: Cost
    """Of a batch as large as the recipe's."""
    fixed: Cost
    """The part of it that is the same for a batch of any size."""
    spread: float
    """The middle half of the steps, as a share of the median."""
    batch_size: int

    @property
    def images_per_s(self) -> float:
        return self.batch_size / max(self.cost.wall_s, 1e-9)


@dataclass(frozen=True)
class Together:
    """Real batches through the real step."""

    batch_size: int
    measured_size: int
    steps: int
    cost: Cost
    facts: Facts | None
    """Where the time of these steps went."""

    @property
    def images_per_s(self) -> float:
        return self.batch_size / max(self.cost.wall_s, 1e-9)


def precisions(recipe: Recipe, device: torch.device) -> list[str]:
    """What the device can do; on a CPU the recipe's own beside fp32."""
    if device.type != "cuda":
        return ["off", *([recipe.amp] if recipe.amp in ("bf16", "fp16") else [])]
    newer = torch.cuda.get_device_capability(device) >= (8, 0)
    return ["off", "tf32", "bf16", "fp16"] if newer else ["off", "fp16"]


def one_phase(recipe: Recipe) -> Recipe:
    """A recipe of several phases as its longest alone: a figure needs one size."""
    if not recipe.phases:
        return recipe
    ends = [*(phase.from_epoch for phase in recipe.phases[1:]), recipe.epochs]
    lasts = [
        (end - phase.from_epoch, phase.from_epoch)
        for phase, end in zip(recipe.phases, ends, strict=True)
    ]
    phase = recipe.phases[lasts.index(max(lasts))]
    return replace(recipe, phases=(), image_size=phase.image_size, batch_size=phase.batch_size)


def harmless(recipe: Recipe) -> Recipe:
    """The same work, with weights that hardly move and a run that does not end."""
    return replace(
        one_phase(recipe),
        lr=1e-9,
        scheduler="constant",
        warmup_epochs=0.0,
        epochs=1 << 20,
        on_divergence="off",
        compile=False,
    )


class Trial:
    """A network with all it takes to make steps."""

    def __init__(
        self, recipe: Recipe, ranks: Ranks, model: nn.Module, normalise: Normalise, samples: int
    ) -> None:
        set_arithmetic(recipe)
        self.recipe, self.ranks = recipe, ranks
        state = TrainState.fresh(recipe, model, ranks.device)
        timeline = Timeline.of(recipe, samples)
        to_input = input_maker(normalise, ranks.device, recipe.channels_last)
        spans = Spans(clock_of(ranks.device))
        self.step = Step(recipe, timeline, ranks, state, model, to_input, Remedies(NOWHERE), spans)
        model.train()

    def __call__(self, loaded: Loaded) -> None:
        try:
            self.step(loaded)
        except Trouble as trouble:
            if self.step.starved_at is None:
                raise AssertionError(f"a step that cannot diverge did: {trouble}") from trouble
        if self.step.starved_at is not None:
            raise BadRequest(self.too_large(len(loaded.labels)))

    def too_large(self, images: int) -> str:
        recipe = self.recipe
        return (
            f"{recipe.model} runs out of memory with {images:,} images of {recipe.image_size} px "
            f"at once: lower --batch-size, or set --micro-batch to {max(images // 2, 2)} or less"
        )

    def finish(self) -> None:
        """Until the device has done what it was told."""
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.ranks.device)


class Synthetic:
    """Batches of noise, of any size up to the recipe's."""

    def __init__(self, trial: Trial, classes: int) -> None:
        self.trial, self.size = trial, trial.recipe.image_size
        self._classes = classes
        self._noise = np.random.default_rng(0)
        self._images = np.empty((0, self.size, self.size, 3), np.uint8)

    def batch(self, images: int) -> Loaded:
        if len(self._images) < images:
            shape = (images, self.size, self.size, 3)
            self._images = self._noise.integers(0, 256, shape, dtype=np.uint8)
        numbers = np.arange(images)
        batch = Batch(0, 0, images, self.size)
        return Loaded(batch, self._images[:images], numbers % self._classes, numbers, numbers * 0)

    def timed(self, images: int) -> Cost:
        """One step, or on a GPU the share of one in a group that runs without a stop."""
        loaded, group = self.batch(images), 1
        if self.trial.ranks.device.type == "cuda":
            group = STEPS
        began, used = time.perf_counter(), time.process_time()
        for _ in range(group):
            self.trial(loaded)
        self.trial.finish()
        return Cost((time.perf_counter() - began) / group, (time.process_time() - used) / group)

    def largest(self, seconds: float) -> int:
        """The batch to measure with: the recipe's, or the largest that leaves time for enough
        steps."""
        recipe = self.trial.recipe
        images = min(2, recipe.batch_size)
        until = time.perf_counter() + seconds
        while True:
            # Twice: the first of a shape sets up kernels.
            took_s = min(self.undisturbed_s(self.timed(images)) for _ in range(2))
            grown = min(2 * images, recipe.batch_size)
            too_slow = took_s * (grown / images) * (STEPS + 1) > seconds
            if images == grown or too_slow or time.perf_counter() > until:
                return images
            images = grown

    def undisturbed_s(self, cost: Cost) -> float:
        """What a step would take were nobody else here: on a CPU that is told by its own time."""
        if self.trial.ranks.device.type == "cuda":
            return cost.wall_s
        return max(cost.cpu_s / torch.get_num_threads(), cost.wall_s / MOST_DISTURBED)

    def measure(self, seconds: float) -> Compute:
        recipe = self.trial.recipe
        images = self.largest(seconds)
        half = max(images // 2, 1)
        whole_costs: list[Cost] = []
        half_costs: list[Cost] = []
        until = time.perf_counter() + seconds
        while len(whole_costs) < STEPS or (
            time.perf_counter() < until and len(whole_costs) < MOST_STEPS
        ):
            # In turns, so that both see the same moods of the machine.
            whole_costs.append(self.timed(images))
            half_costs.append(self.timed(half))
        whole, small = middle(whole_costs), middle(half_costs)
        fixed = Cost(fixed_s(whole.wall_s, small.wall_s), fixed_s(whole.cpu_s, small.cpu_s))
        uneven = spread([cost.wall_s for cost in whole_costs])
        if half * 2 != images or uneven > TOO_UNEVEN:
            fixed = Cost(0.0, 0.0)
        return Compute(
            recipe.amp,
            images,
            len(whole_costs),
            for_batch(whole, images, fixed, recipe.batch_size),
            fixed,
            uneven,
            recipe.batch_size,
        )


def middle(costs: list[Cost]) -> Cost:
    return Cost(median(cost.wall_s for cost in costs), median(cost.cpu_s for cost in costs))


def measure_compute(
    recipe: Recipe, classes: int, ranks: Ranks, seconds: float, room: int
) -> Iterator[Compute]:
    """Each precision in turn; `room` is the free memory of the machine."""
    for amp in precisions(recipe, ranks.device):
        tried = replace(harmless(recipe), amp=amp)
        refuse_too_large(tried, classes, free_on(ranks.device, room))
        model, normalise = build_model(tried, classes)
        layout = torch.channels_last if tried.channels_last else torch.contiguous_format
        model = model.to(device=ranks.device, memory_format=layout)  # type: ignore[call-overload]
        trial = Trial(tried, ranks, model, normalise, max(tried.batch_size, 1 << 20))
        yield Synthetic(trial, classes).measure(seconds)


def measure_together(
    dataset: Dataset, recipe: Recipe, ranks: Ranks, compute: Compute, seconds: float
) -> Together:
    """Train for some seconds with batches of the size that compute was measured with. The first
    steps, whose batches were ready before, are left out."""
    tried = replace(harmless(recipe), batch_size=compute.measured_size)
    prepared = replace(prepare(dataset, tried, ranks), evaluated=None)
    feeding = feed(prepared, prepared.lanes, ranks, lambda words: None)
    trial = Trial(tried, ranks, prepared.model, prepared.normalise, len(prepared.split))
    costs: list[Cost] = []
    laps: list[tuple[Lap, dict[str, float]]] = []
    first, spans = prepared.fit.prefetch + 2, trial.step.spans
    batches = feeding.loader.batches(trial.step.timeline.batches())
    try:
        until = time.perf_counter() + seconds
        began, used = time.perf_counter(), time.process_time()
        spans.lap()
        while began < until or len(costs) < first + STEPS:
            with spans("data"):
                loaded = next(batches)
            trial(loaded)
            if (len(costs) + 1 - first) % STEPS == 0:
                trial.finish()
            laps.append((spans.lap(shares_of(loaded.work)), loaded.work))
            now, now_used = time.perf_counter(), time.process_time()
            costs.append(Cost(now - began, now_used - used))
            began, used = now, now_used
    finally:
        feeding.loader.close()
    kept = costs[first:]
    paces = [mean_of(kept[at : at + STEPS]) for at in range(0, len(kept) - STEPS + 1, STEPS)]
    cost = for_batch(middle(paces), tried.batch_size, compute.fixed, compute.batch_size)
    facts = facts_of_laps(laps[first:], tried.batch_size, feeding.loader.threads)
    return Together(compute.batch_size, tried.batch_size, len(kept), cost, facts)


def facts_of_laps(
    laps: list[tuple[Lap, dict[str, float]]], images: int, threads: int
) -> Facts | None:
    """The facts of some steps, as a run would have left them in its events."""
    seen = AttemptSums()
    environment = {"cores": usable_cores(), "threads": torch.get_num_threads()}
    start = {"kind": "attempt", "step": -WARM_UP, "environment": environment}
    seen.add(0, {**start, "loading_threads": threads})
    for step, (lap, work) in enumerate(laps):
        timed = {"parts": lap.parts(), "on_cpu": lap.on_cpu(), "work": work}
        seen.add(0, {"kind": "step", "step": step, "batch": images, **timed})
    return seen.facts()


def mean_of(costs: list[Cost]) -> Cost:
    count = len(costs)
    return Cost(sum(cost.wall_s for cost in costs) / count, sum(c.cpu_s for c in costs) / count)
