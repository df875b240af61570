"""Does training fit into a GPU of so many GB? Answered from shapes alone, before one is rented.

Invariants: nothing is measured and no device is asked. Every phase of a recipe must fit. Where a
rank's share of a batch does not, it is halved, as a run does that has run out of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from stoker.recipe.recipe import Phase, Recipe
from stoker.recipe.schedule import cuts
from stoker.survive.remedies import SMALLEST_MICRO_BATCH
from stoker.train.trials.device_memory import GB, Peak, Prediction


@dataclass(frozen=True)
class PhaseMemory:
    """The memory of one phase, without smaller micro-batches than the recipe's."""

    image_size: int
    batch_size: int
    peak: Peak


@dataclass(frozen=True)
class MemoryAnswer:
    """Whether a recipe fits into `memory_gb`, and how."""

    recipe: Recipe
    classes: int
    world: int
    memory_gb: float
    phases: Sequence[PhaseMemory]
    """In the order of the recipe."""
    training: Peak
    """Of the phase that needs most, with the micro-batch below; or with the smallest possible."""
    evaluation: Peak
    """With the recipe's `eval_batch_size`."""
    micro_batch: int | None
    """Images at once that fit in every phase. 0: what the recipe says fits. None: nothing does."""
    eval_batch_size: int | None
    """The same for an evaluation."""

    @property
    def most(self) -> PhaseMemory:
        """The phase that needs most memory."""
        return max(self.phases, key=lambda phase: phase.peak.total)

    @property
    def needs_bytes(self) -> int:
        """The highest total, of training and evaluation, as the recipe says."""
        return max(self.most.peak.total, self.evaluation.total)

    @property
    def fits(self) -> bool:
        """Whether the recipe fits as it is."""
        return self.micro_batch == 0 and self.eval_batch_size == 0

    def as_data(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "recipe": self.recipe.values(),
            "classes": self.classes,
            "world": self.world,
            "memory_gb": self.memory_gb,
            "needs_bytes": self.needs_bytes,
            "micro_batch": self.micro_batch,
            "eval_batch_size": self.eval_batch_size,
            "training": vars(self.training),
            "evaluation": vars(self.evaluation),
            "phases": [vars(phase) | {"peak": vars(phase.peak)} for phase in self.phases],
        }


def answer_memory(
    recipe: Recipe, classes: int, world: int, memory_gb: float, prediction: Prediction | None = None
) -> MemoryAnswer:
    """Predict the memory of each phase. Raises BadRequest for a model that cannot be built or does
    not take the recipe's images. A `prediction` of the same recipe is used again."""
    predict, limit = prediction or Prediction(recipe, classes, world), memory_gb * GB
    phases = phases_of(recipe)
    shares = [largest_share(phase.batch_size, world) for phase in phases]
    wanted = [min(recipe.micro_batch or share, share) for share in shares]

    def train(number: int, images: int) -> Peak:
        at_once = min(images, wanted[number])
        return predict.training(shares[number], at_once, phases[number].image_size)

    def worst(images: int) -> Peak:
        numbers: Sequence[int] = range(len(phases))
        if images <= min(wanted):  # of as many images, the largest need most
            numbers = [max(numbers, key=lambda number: phases[number].image_size)]
        return max((train(number, images) for number in numbers), key=lambda peak: peak.total)

    def evaluate(images: int) -> Peak:
        return predict.evaluation(images, max(phase.image_size for phase in phases))

    largest = max(wanted)
    fitting = largest_fitting(largest, worst, limit)
    fitting_evaluation = largest_fitting(recipe.eval_batch_size, evaluate, limit)
    return MemoryAnswer(
        recipe,
        classes,
        world,
        memory_gb,
        [
            PhaseMemory(phase.image_size, phase.batch_size, train(number, largest))
            for number, phase in enumerate(phases)
        ],
        worst(fitting or SMALLEST_MICRO_BATCH),
        evaluate(recipe.eval_batch_size),
        0 if fitting == largest else fitting,
        0 if fitting_evaluation == recipe.eval_batch_size else fitting_evaluation,
    )


def phases_of(recipe: Recipe) -> Sequence[Phase]:
    whole = Phase(from_epoch=0, image_size=recipe.image_size, batch_size=recipe.batch_size)
    return recipe.phases or (whole,)


def largest_share(batch_size: int, world: int) -> int:
    """Images of the rank that has most of a batch."""
    return max(end - begin for begin, end in pairwise(cuts(batch_size, world)))


def largest_fitting(images: int, peak_of: Callable[[int], Peak], limit: float) -> int | None:
    """`images`, or the first of its halves that fits; None where not even the smallest does."""
    if peak_of(images).total <= limit:
        return images
    sizes = [images]
    while sizes[-1] > SMALLEST_MICRO_BATCH:
        sizes.append(max(sizes[-1] // 2, SMALLEST_MICRO_BATCH))
    too_large, fits = 0, len(sizes)
    while fits - too_large > 1:  # fewer images never need more memory
        middle = (too_large + fits) // 2
        if peak_of(sizes[middle]).total <= limit:
            fits = middle
        else:
            too_large = middle
    return sizes[fits] if fits < len(sizes) else None
