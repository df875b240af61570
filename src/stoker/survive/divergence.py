"""Detect gradients that are not finite, before the weights change, and losses that explode.

Invariants: after the gradient exchange, the norm of the whole batch's gradient is the same number
on every rank, so all ranks decide the same at the same step without asking each other. On a GPU the
optimiser skips a step that is not finite by itself, and the host reads the norm LATE_STEPS steps
late, when it has arrived: it never waits for the device. An exploding loss is detected from the
losses on their way to the log. A loss that was too high in the first step of all was so before any
weight changed: no learning rate is to blame, and training may still bring it down.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Protocol

from torch import Tensor

LATE_STEPS = 2
"""On a GPU the host reads the numbers of a step this many steps later."""
FAR_ABOVE_CHANCE = 1.5
"""A loss above this many times the loss of guessing, and 1 above it, is too high."""
PATIENCE_STEPS = 20
"""Steps in a row with such a loss that count as an explosion."""
BLOCK, BLOCKS = 25, 4
"""A loss that began too high falls as long as one block of so many steps in so many is lower."""
LOWER = 0.98
"""A block is lower if its mean is below this part of the lowest one before."""
HAS_RISEN = 4
"""A loss has risen if it is this many times the first one."""


class Late(Protocol):
    """Numbers that arrive on the host some time later."""

    def passed(self) -> bool: ...

    def numbers(self) -> Tensor: ...


@dataclass(frozen=True)
class PendingStep:
    """A step of this rank whose gradient norm is still to be checked."""

    step: int
    sums: Late
    """Loss, top-1 and top-5 hits of this rank's images, and the norm of the gradient."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What this step was made of: kept here, for another step may be under way by then."""


class Sentinel:
    """Checks the gradient norm of each step, without waiting for the device."""

    def __init__(self, late_steps: int = 0) -> None:
        self._late = late_steps
        self._pending: deque[PendingStep] = deque()

    def add(self, step: PendingStep) -> None:
        self._pending.append(step)

    def first_bad(self, *, all_steps: bool = False) -> PendingStep | None:
        """The next step whose norm is not finite, of those old enough to read or all; or None."""
        while self._pending and (all_steps or len(self._pending) > self._late):
            step = self._pending.popleft()
            if not math.isfinite(float(step.sums.numbers()[3])):
                return step
        return None


@dataclass
class FallingLoss:
    """Whether a loss that began too high still falls."""

    first: float | None = None
    has_risen: bool = False
    """Whether the latest loss is far above the first one."""
    lowest: float = math.inf
    """The lowest mean of a block of steps."""
    waiting: int = 0
    """Blocks since then."""
    block: list[float] = field(default_factory=list)

    def add(self, loss: float, *, counts: bool) -> None:
        """Take the loss of a step; in the warm-up it does not count."""
        self.first = loss if self.first is None else self.first
        self.has_risen = not loss < HAS_RISEN * self.first
        if counts:
            self.block.append(loss)
        if len(self.block) == BLOCK:
            is_lower = (mean := fmean(self.block)) < LOWER * self.lowest
            self.lowest, self.waiting = (mean, 0) if is_lower else (self.lowest, self.waiting + 1)
            self.block = []

    @property
    def goes_on(self) -> bool:
        return self.waiting < BLOCKS and not self.has_risen


@dataclass
class LossWatch:
    """Counts the steps whose loss is far above the loss of guessing, unless the loss was so in the
    first step of the run and falls."""

    chance: float
    """The loss of guessing: the logarithm of the number of classes. Infinite: no step counts."""
    from_step: int = 0
    """Earlier steps do not count: the learning-rate warm-up."""
    began_high: bool = False
    """Whether every loss of the run was above the limit so far."""
    high: int = 0
    """Steps in a row with a loss above the limit that does not fall from a high beginning."""
    streak: int = 0
    """Those of them from `from_step` on."""
    since: int = 0
    """The first step of the row."""
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=50))
    falling: FallingLoss = field(default_factory=FallingLoss)

    def add(self, step: int, loss: float) -> None:
        self.recent.append((step, loss))
        if self.exploding:
            return
        is_high = not loss <= self.limit and math.isfinite(self.limit)
        self.began_high = is_high and (self.began_high or step == 0)
        if self.began_high:
            self.falling.add(loss, counts=step >= self.from_step)
        if not is_high or (self.began_high and self.falling.goes_on):
            self.high = self.streak = 0
            return
        if not self.high:
            self.since = step
        self.high += 1
        self.streak += step >= self.from_step

    @property
    def limit(self) -> float:
        return max(FAR_ABOVE_CHANCE * self.chance, self.chance + 1)

    @property
    def exploding(self) -> bool:
        return self.streak >= PATIENCE_STEPS

    @property
    def stuck(self) -> bool:
        """Whether a loss that was high before any weight changed stays where it is."""
        return self.began_high and not self.falling.has_risen

    def words(self, since: int, risen: bool) -> str:
        """What is wrong with the latest losses, too high from a step on: they rose, or do not fall
        from a high beginning."""
        losses = [loss for _, loss in self.recent] or [0.0]
        text = f"a loss of up to {max(losses):.1f} since step {since}"
        if not risen:
            text = f"a loss of {losses[-1]:.1f} that does not fall"
        return f"{text}; guessing gives {self.chance:.1f}"
