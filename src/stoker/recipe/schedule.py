"""Position is one integer: the number of samples consumed since the run began.

Invariants: epoch, step, phase, image size, batch size and learning rate are pure functions of the
position. Batches run through the ends of epochs; a batch belongs to the phase that holds its first
sample. At the very end fewer than one batch is left unseen, and `unseen` says how many.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.errors import BadRequest
from stoker.recipe.recipe import Phase, Recipe


@dataclass(frozen=True)
class Stretch:
    """A run of equal batches: one phase, from its first batch to its last."""

    first_position: int
    first_step: int
    steps: int
    image_size: int
    batch_size: int

    @property
    def end_position(self) -> int:
        return self.first_position + self.steps * self.batch_size


@dataclass(frozen=True)
class Batch:
    """One step of a run: which samples it takes and how large they are."""

    step: int
    position: int
    size: int
    image_size: int

    @property
    def end(self) -> int:
        return self.position + self.size


@dataclass(frozen=True)
class Timeline:
    """All batches of a run over a set of `samples` images, or those from some place on."""

    samples: int
    epochs: int
    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, recipe: Recipe, samples: int, position: int = 0, step: int = 0) -> Timeline:
        """The batches of a recipe, from where it took over (0: from the beginning)."""
        phases = recipe.phases or (
            Phase(from_epoch=0, image_size=recipe.image_size, batch_size=recipe.batch_size),
        )
        total = recipe.epochs * samples
        if position and total - position < phases[-1].batch_size:
            raise BadRequest(
                f"the run is at epoch {position / samples:.2f}: {recipe.epochs} epochs leave less "
                "than one batch to train; raise --epochs"
            )
        stretches: list[Stretch] = []
        for phase, following in zip(phases, (*phases[1:], None), strict=True):
            if following and position >= following.from_epoch * samples > 0:
                continue
            if following is None:
                steps = (total - position) // phase.batch_size
            else:
                steps = math.ceil((following.from_epoch * samples - position) / phase.batch_size)
            stretches.append(Stretch(position, step, steps, phase.image_size, phase.batch_size))
            position, step = stretches[-1].end_position, step + steps
            if steps < 1 or position > total:
                raise BadRequest(
                    f"batch_size = {phase.batch_size} is too large for a run of {total:,} samples "
                    f"({samples:,} images x {recipe.epochs} epochs): lower --batch-size"
                )
        return cls(samples, recipe.epochs, tuple(stretches))

    @property
    def steps(self) -> int:
        return self.stretches[-1].first_step + self.stretches[-1].steps

    @property
    def end(self) -> int:
        """The position after the last whole batch."""
        return self.stretches[-1].end_position

    @property
    def unseen(self) -> int:
        """Samples of the last epoch that no whole batch is left for."""
        return self.epochs * self.samples - self.end

    def batch_at(self, position: int) -> Batch:
        """The batch that starts at a position."""
        starts = [stretch.first_position for stretch in self.stretches]
        stretch = self.stretches[bisect_right(starts, position) - 1]
        done, rest = divmod(position - stretch.first_position, stretch.batch_size)
        if rest or not starts[0] <= position < self.end:
            raise ValueError(f"no batch starts at position {position}")
        return Batch(stretch.first_step + done, position, stretch.batch_size, stretch.image_size)

    def batch_of_step(self, step: int) -> Batch:
        """The batch of a step."""
        firsts = [stretch.first_step for stretch in self.stretches]
        stretch = self.stretches[max(bisect_right(firsts, step) - 1, 0)]
        done = step - stretch.first_step
        return self.batch_at(stretch.first_position + done * stretch.batch_size)

    def batches(self, position: int | None = None) -> Iterator[Batch]:
        """The batches from a position (or the very first) to the end of the run."""
        if position is None:
            position = self.stretches[0].first_position
        while position < self.end:
            batch = self.batch_at(position)
            yield batch
            position = batch.end


def cuts(batch_size: int, parts: int) -> list[int]:
    """Where a batch is cut into even-sized parts. Cuts fall on even numbers, so that the two
    samples of a mixing pair are never parted."""
    return [2 * (batch_size // 2 * part // parts) for part in range(parts)] + [batch_size]


def micro_cuts(share: int, micro_batch: int) -> list[int]:
    """Where a rank's share is cut into micro-batches of at most `micro_batch` (0: one), rounded
    down to an even number; the odd image of an odd share rides with the last."""
    if not micro_batch:
        return [0, share]
    largest = max(micro_batch // 2 * 2, 2)
    return cuts(share, max(1, math.ceil((share // 2 * 2) / largest)))


def peak_lr(recipe: Recipe, batch_size: int) -> float:
    """The highest learning rate for a global batch of this size."""
    if recipe.lr > 0:
        return recipe.lr
    ratio = batch_size / recipe.lr_base_size
    return recipe.lr_base * (ratio if recipe.lr_base_scale == "linear" else math.sqrt(ratio))


def lr_factor(recipe: Recipe, epoch: float) -> float:
    """The share of the peak learning rate at a (fractional) epoch."""
    if epoch < recipe.warmup_epochs:
        # OneCycle starts at 1/25 of the peak, the field's usual value; plain warm-up near zero.
        low = 0.04 if recipe.scheduler == "onecycle" else 0.001
        return low + (1 - low) * epoch / recipe.warmup_epochs
    floor = recipe.min_lr_ratio
    if recipe.scheduler == "constant":
        return 1.0
    if recipe.scheduler == "step":
        return max(recipe.decay_rate ** sum(epoch >= at for at in recipe.decay_epochs), floor)
    share = (epoch - recipe.warmup_epochs) / (recipe.epochs - recipe.warmup_epochs)
    if recipe.scheduler == "onecycle":
        return max(1 - share, floor)
    return floor + (1 - floor) * (1 + math.cos(math.pi * share)) / 2


def learning_rate(recipe: Recipe, samples: int, batch: Batch) -> float:
    """The learning rate of a batch: a function of where it starts and how large it is."""
    return peak_lr(recipe, batch.size) * lr_factor(recipe, batch.position / samples)
