"""Detect gradients that are not finite, before the weights change, and losses that explode.

Invariants: after the gradient exchange, the norm of the whole batch's gradient is the same number
on every rank, so all ranks decide the same at the same step without asking each other. On a GPU the
optimiser skips a step that is not finite by itself, and the host reads the norm LATE_STEPS steps
late, when it has arrived: it never waits for the device. An exploding loss is detected from the
losses on their way to the log.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

LATE_STEPS = 2
"""On a GPU the host reads the numbers of a step this many steps later."""
FAR_ABOVE_CHANCE = 1.5
"""A loss above this many times the loss of guessing, and 1 above it, is too high."""
PATIENCE_STEPS = 20
"""Steps in a row with such a loss that count as an explosion."""


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
class LossWatch:
    """Counts the steps whose loss is far above the loss of guessing."""

    chance: float
    """The loss of guessing: the logarithm of the number of classes. Infinite: no step counts."""
    from_step: int = 0
    """Earlier steps do not count: the learning-rate warm-up."""
    high: int = 0
    """Steps in a row with a loss above the limit."""
    streak: int = 0
    """Those of them from `from_step` on."""
    since: int = 0
    """The first step of the row."""
    recent: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=50))

    def add(self, step: int, loss: float) -> None:
        self.recent.append((step, loss))
        if self.exploding:
            return
        if loss <= self.limit or math.isinf(self.limit):
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
