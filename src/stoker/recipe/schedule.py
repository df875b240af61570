"""The schedule of a run. A position is one integer: the number of samples since the run began.

Invariants: epoch, step, phase, image size, batch size and learning rate are pure functions of the
position. A batch may span the end of an epoch. It belongs to the phase that holds its first sample.
At the end of the run, fewer samples than a batch may remain unused: `unseen` is their number.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from stoker.errors import BadRequest
from stoker.recipe.recipe import Phase, Recipe
from stoker.text import plural


@dataclass(frozen=True)
class Stretch:
    """The batches of one phase: all of the same size."""

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
    """The batch of one step: which samples it takes, and their image size."""

    step: int
    position: int
    size: int
    image_size: int

    @property
    def end(self) -> int:
        return self.position + self.size


@dataclass(frozen=True)
class Timeline:
    """All batches of a run over `samples` training images, or those from a position on."""

    samples: int
    epochs: int
    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, recipe: Recipe, samples: int, position: int = 0, step: int = 0) -> Timeline:
        """The batches from a position on, which is that of `step`. Raises BadRequest for none."""
        phases = recipe.phases or (
            Phase(from_epoch=0, image_size=recipe.image_size, batch_size=recipe.batch_size),
        )
        total = recipe.epochs * samples
        if position and total - position < phases[-1].batch_size:
            raise BadRequest(
                f"the run is at epoch {position / samples:.2f}, and less than one batch is left of "
                f"{plural(recipe.epochs, 'epoch')}: raise --epochs"
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
                    f"batch_size = {phase.batch_size} is too large for a run of "
                    f"{plural(total, 'sample')} ({plural(samples, 'image')} x "
                    f"{plural(recipe.epochs, 'epoch')}): lower --batch-size"
                )
        return cls(samples, recipe.epochs, tuple(stretches))

    @property
    def steps(self) -> int:
        return self.stretches[-1].first_step + self.stretches[-1].steps

    @property
    def end(self) -> int:
        """The position after the last batch."""
        return self.stretches[-1].end_position

    @property
    def unseen(self) -> int:
        """The number of samples at the end that do not fill a batch."""
        return self.epochs * self.samples - self.end

    def batch_at(self, position: int) -> Batch:
        """The batch that starts at a position. Raises ValueError where none does."""
        starts = [stretch.first_position for stretch in self.stretches]
        stretch = self.stretches[bisect_right(starts, position) - 1]
        done, rest = divmod(position - stretch.first_position, stretch.batch_size)
        if rest or not starts[0] <= position < self.end:
            raise ValueError(f"no batch starts at position {position}")
        return Batch(stretch.first_step + done, position, stretch.batch_size, stretch.image_size)

    def has(self, position: int, step: int) -> bool:
        """Whether a run that follows this timeline is at this position after so many steps."""
        try:
            return (position, step) == (self.end, self.steps) or self.batch_at(
                position
            ).step == step
        except ValueError:
            return False

    def batch_of_step(self, step: int) -> Batch:
        """The batch of a step. Raises ValueError where the timeline has no such step."""
        firsts = [stretch.first_step for stretch in self.stretches]
        stretch = self.stretches[max(bisect_right(firsts, step) - 1, 0)]
        return self.batch_at(
            stretch.first_position + (step - stretch.first_step) * stretch.batch_size
        )

    def batch_start_from(self, epoch: float) -> int:
        """The first position from an epoch on at which a batch starts, or the end of the run."""
        wanted = min(math.ceil(epoch * self.samples), self.end)
        for stretch in self.stretches:
            if wanted <= stretch.end_position:
                batches = max(0, -(-(wanted - stretch.first_position) // stretch.batch_size))
                return stretch.first_position + batches * stretch.batch_size
        return self.end

    def batches(self, position: int | None = None, end: int | None = None) -> Iterator[Batch]:
        """The batches from a position (default: the first one) to an end (that of the run)."""
        if position is None:
            position = self.stretches[0].first_position
        while position < (self.end if end is None else end):
            batch = self.batch_at(position)
            yield batch
            position = batch.end


def one_phase(recipe: Recipe) -> Recipe:
    """A recipe of several phases reduced to its longest one: a figure needs one size."""
    if not recipe.phases:
        return recipe
    ends = [*(phase.from_epoch for phase in recipe.phases[1:]), recipe.epochs]
    phase, _ = max(
        zip(recipe.phases, ends, strict=True),
        key=lambda pair: (pair[1] - pair[0].from_epoch, pair[0].from_epoch),
    )
    return replace(recipe, phases=(), image_size=phase.image_size, batch_size=phase.batch_size)


def check_batch(recipe: Recipe, ranks: int) -> None:
    """Raise BadRequest for a batch that is too small for so many ranks."""
    smallest = min([phase.batch_size for phase in recipe.phases] or [recipe.batch_size])
    if smallest < 2 * ranks:
        raise BadRequest(
            f"batch_size = {smallest} is too small for {plural(ranks, 'rank')}, which need 2 "
            "images each: raise --batch-size, or lower --ranks"
        )


def cuts(batch_size: int, parts: int) -> list[int]:
    """The offsets that cut a batch into parts of nearly equal size, with 0 and the end. The inner
    ones are even, so that the two samples of a mixing pair stay together."""
    return [2 * (batch_size // 2 * part // parts) for part in range(parts)] + [batch_size]


def micro_cuts(share: int, micro_batch: int) -> list[int]:
    """The offsets that cut a rank's share into micro-batches of at most `micro_batch` images,
    rounded down to an even number (0: one micro-batch). An odd share adds one image to the last."""
    if not micro_batch:
        return [0, share]
    largest = max(micro_batch // 2 * 2, 2)
    return cuts(share, max(1, math.ceil((share // 2 * 2) / largest)))


def peak_lr(recipe: Recipe, batch_size: int) -> float:
    """The peak learning rate for a global batch of this size."""
    if recipe.lr > 0:
        return recipe.lr
    ratio = batch_size / recipe.lr_base_size
    return recipe.lr_base * (ratio if recipe.lr_base_scale == "linear" else math.sqrt(ratio))


def lr_factor(recipe: Recipe, epoch: float) -> float:
    """The fraction of the peak learning rate at an epoch, which may be fractional."""
    if epoch < recipe.warmup_epochs:
        # OneCycle usually starts at 1/25 of the peak; other schedules warm up from almost zero.
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
    """The learning rate of a batch: a function of its position and its size."""
    return peak_lr(recipe, batch.size) * lr_factor(recipe, batch.position / samples)
