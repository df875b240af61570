"""The speed of training steps: with images in memory, and together with the loader.

Invariants: a step is the real `Step`, with the recipe's model, optimiser, precision, mixing and
moving average. Only the learning rate is close to zero, so that random images cannot make it
diverge. Batches grow from two images: if the recipe's batch is too slow, a smaller one is measured
and the result says so. A batch that does not fit into memory is refused before it is tried.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

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
from stoker.recipe.schedule import Batch, Timeline, one_phase
from stoker.survive.remedies import MEMORY, Remedies, Trouble
from stoker.text import plural
from stoker.train.device import build_on_device, set_arithmetic
from stoker.train.loaders import build_loaders, prepare
from stoker.train.model.build import Normalise, check_image_sizes
from stoker.train.model_input import input_maker
from stoker.train.process_group import Ranks
from stoker.train.state import TrainState
from stoker.train.step import Step
from stoker.train.trials.device_memory import refuse_too_large
from stoker.train.trials.memory import free_on

STEPS = 5
"""The fewest steps that are timed; a GPU's steps are timed in groups of this size."""
MOST_STEPS = 60
MOST_DISTURBED = 3.0
"""Other processes are assumed to make a step at most this many times as long."""
TOO_UNEVEN = 0.3
"""Above this spread of step times, the difference between two of them means nothing."""
NO_RUN = Path("no-run")
"""A folder that does not exist: a trial has no remedies."""


@dataclass(frozen=True)
class Compute:
    """The speed of steps in one precision, with images that are in memory already."""

    amp: str
    measured_size: int
    """Images in the batches that were timed."""
    steps: int
    cost: Cost
    """Cost of a step with the recipe's batch size."""
    fixed: Cost
    """The part of the cost that is the same for any batch size."""
    spread: float
    """The interquartile range of the step times, as a share of their median."""
    batch_size: int

    @property
    def images_per_s(self) -> float:
        return self.batch_size / max(self.cost.wall_s, 1e-9)


@dataclass(frozen=True)
class Together:
    """The speed of real steps with batches from the loader."""

    batch_size: int
    measured_size: int
    steps: int
    cost: Cost
    facts: Facts | None
    """How the time of these steps was spent."""

    @property
    def images_per_s(self) -> float:
        return self.batch_size / max(self.cost.wall_s, 1e-9)


def precisions(recipe: Recipe, device: torch.device) -> list[str]:
    """The precisions to measure: all that a GPU has; on a CPU fp32 and the recipe's own."""
    if device.type != "cuda":
        return ["off", *([recipe.amp] if recipe.amp in ("bf16", "fp16") else [])]
    newer = torch.cuda.get_device_capability(device) >= (8, 0)
    return ["off", "tf32", "bf16", "fp16"] if newer else ["off", "fp16"]


def harmless(recipe: Recipe) -> Recipe:
    """The recipe with random weights that hardly change and a run that does not end. All of them
    are trained, as at the end of a run that begins with some of them frozen."""
    return replace(
        one_phase(recipe),
        pretrained=False,
        weights="",
        freeze="",
        freeze_epochs=0.0,
        patience=0,
        target=0.0,
        lr=1e-9,
        scheduler="constant",
        warmup_epochs=0.0,
        epochs=1 << 20,
        on_divergence="off",
        compile=False,
    )


class Trial:
    """A model with everything that a step needs, and random images of any batch size."""

    def __init__(
        self, recipe: Recipe, ranks: Ranks, model: nn.Module, normalise: Normalise, samples: int
    ) -> None:
        set_arithmetic(recipe)
        self.recipe, self.ranks = recipe, ranks
        self._batches: dict[int, Loaded] = {}
        state = TrainState.fresh(recipe, model, ranks.device)
        timeline = Timeline.of(recipe, samples)
        to_input = input_maker(normalise, ranks.device, recipe.channels_last, recipe.amp)
        spans = Spans(clock_of(ranks.device))
        self.step = Step(recipe, timeline, ranks, state, model, to_input, Remedies(NO_RUN), spans)
        model.train()

    def __call__(self, loaded: Loaded) -> None:
        """Make a step. Raises BadRequest if it runs out of memory."""
        try:
            self.step(loaded)
        except Trouble as trouble:
            if trouble.kind != MEMORY:
                raise AssertionError(f"a step that cannot diverge did: {trouble}") from trouble
            images, recipe = len(loaded.labels), self.recipe
            raise BadRequest(
                f"{recipe.model} runs out of memory with {plural(images, 'image')} of "
                f"{recipe.image_size} px at once: lower --batch-size, or set --micro-batch to "
                f"{max(images // 2, 2)} or less"
            ) from trouble

    def finish(self) -> None:
        """Wait until the device has finished its work."""
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize(self.ranks.device)

    def random_batch(self, images: int) -> Loaded:
        """Random images in memory from which a GPU copies without waiting, as a loader's are."""
        if images not in self._batches:
            size = self.recipe.image_size
            pixels = self.step.batches.memory(1).take((images, size, size, 3))
            pixels[:] = np.random.default_rng(0).integers(0, 256, pixels.shape, dtype=np.uint8)
            numbers, zeros = np.arange(images), np.zeros(images, np.int64)
            batch = Batch(0, 0, images, size)
            self._batches[images] = Loaded(batch, pixels, zeros, numbers, zeros)
        return self._batches[images]

    def timed(self, images: int) -> Cost:
        """The cost of one step; on a GPU the mean of a group of steps without a pause between."""
        loaded = self.random_batch(images)
        group = STEPS if self.ranks.device.type == "cuda" else 1
        began, used = time.perf_counter(), time.process_time()
        for _ in range(group):
            self(loaded)
        self.finish()
        return Cost((time.perf_counter() - began) / group, (time.process_time() - used) / group)

    def largest(self, seconds: float) -> int:
        """The batch size to measure: the recipe's, or the largest that is fast enough."""
        batch_size = self.recipe.batch_size
        images, until = min(2, batch_size), time.perf_counter() + seconds
        while True:
            # Twice: the first step of a shape chooses kernels.
            step_s = min(self.undisturbed_s(self.timed(images)) for _ in range(2))
            larger = min(2 * images, batch_size)
            too_slow = step_s * (larger / images) * (STEPS + 1) > seconds
            if images == larger or too_slow or time.perf_counter() > until:
                return images
            images = larger

    def undisturbed_s(self, cost: Cost) -> float:
        """Seconds of a step without other processes: on a CPU estimated from its CPU time."""
        if self.ranks.device.type == "cuda":
            return cost.wall_s
        return max(cost.cpu_s / torch.get_num_threads(), cost.wall_s / MOST_DISTURBED)

    def measure(self, seconds: float) -> Compute:
        """The speed of steps, measured for about so many seconds."""
        recipe, images = self.recipe, self.largest(seconds)
        half = max(images // 2, 1)
        whole_costs: list[Cost] = []
        half_costs: list[Cost] = []
        until = time.perf_counter() + seconds
        # In turns, so that both sizes see the same state of the machine.
        for step in range(MOST_STEPS):
            if step >= STEPS and time.perf_counter() >= until:
                break
            whole_costs.append(self.timed(images))
            half_costs.append(self.timed(half))
        whole, small = combined(whole_costs, median), combined(half_costs, median)
        fixed = Cost(fixed_s(whole.wall_s, small.wall_s), fixed_s(whole.cpu_s, small.cpu_s))
        uneven = spread([cost.wall_s for cost in whole_costs])
        if half * 2 != images or uneven > TOO_UNEVEN:
            fixed = Cost(0.0, 0.0)
        batch_size, steps = recipe.batch_size, len(whole_costs)
        cost = for_batch(whole, images, fixed, batch_size)
        return Compute(recipe.amp, images, steps, cost, fixed, uneven, batch_size)


def combined(costs: list[Cost], average: Callable[[list[float]], float]) -> Cost:
    """The mean or the median of some costs."""
    return Cost(average([c.wall_s for c in costs]), average([c.cpu_s for c in costs]))


def measure_compute(
    recipe: Recipe, classes: int, ranks: Ranks, seconds: float, free_bytes: int
) -> Iterator[Compute]:
    """Measure each precision for some seconds. Raises BadRequest for a batch above free memory."""
    for amp in precisions(recipe, ranks.device):
        trial_recipe = replace(harmless(recipe), amp=amp)
        refuse_too_large(trial_recipe, classes, free_on(ranks.device, free_bytes))
        model, normalise = build_on_device(trial_recipe, classes, ranks.device)
        check_image_sizes(model, trial_recipe, classes)
        samples = max(trial_recipe.batch_size, 1 << 20)
        yield Trial(trial_recipe, ranks, model, normalise, samples).measure(seconds)


def measure_together(
    dataset: Dataset, recipe: Recipe, ranks: Ranks, compute: Compute, seconds: float
) -> Together:
    """Train with the batch size of `compute`, without the first steps: their data was ready."""
    trial_recipe = replace(harmless(recipe), batch_size=compute.measured_size)
    prepared = replace(prepare(dataset, trial_recipe, ranks), evaluated=None)
    trial = Trial(trial_recipe, ranks, prepared.model, prepared.normalise, len(prepared.split))
    batches_to = trial.step.batches
    loader = build_loaders(prepared, prepared.lanes, ranks, batches_to, lambda note: None).loader
    costs: list[Cost] = []
    laps: list[tuple[Lap, dict[str, float]]] = []
    first, spans = prepared.fit.prefetch + 2, trial.step.spans
    batches = loader.batches(trial.step.timeline.batches())
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
        loader.close()
    kept = costs[first:]
    starts = range(0, len(kept) - STEPS + 1, STEPS)
    groups = [combined(kept[start : start + STEPS], fmean) for start in starts]
    images, fixed = trial_recipe.batch_size, compute.fixed
    cost = for_batch(combined(groups, median), images, fixed, compute.batch_size)
    facts = facts_of_laps(laps[first:], images, loader.threads)
    return Together(compute.batch_size, images, len(kept), cost, facts)


def facts_of_laps(
    laps: list[tuple[Lap, dict[str, float]]], images: int, threads: int
) -> Facts | None:
    """The facts of some steps, as they would follow from the events of a run."""
    gathered = AttemptSums()
    environment = {"cores": usable_cores(), "threads": torch.get_num_threads()}
    start = {"kind": "attempt", "step": -WARM_UP, "environment": environment}
    gathered.add(0, {**start, "loading_threads": threads})
    for step, (lap, work) in enumerate(laps):
        gathered.add(
            0, {"kind": "step", "step": step, "batch": images, "work": work, **lap.times()}
        )
    return gathered.facts()
