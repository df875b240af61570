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
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stoker.host.gpu import wait_for

LATE_STEPS = 2
FAR_ABOVE_CHANCE = 1.5
"""A loss above this many times the loss of guessing, and 1 above it, is too high."""
PATIENCE_STEPS = 20
"""Steps in a row with such a loss that count as an explosion."""


@dataclass(frozen=True)
class PendingStep:
    """A step of this rank whose gradient norm is still to be checked."""

    step: int
    sums: Tensor


class Sentinel:
    """Checks the gradient norm of each step, without waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self._late = LATE_STEPS if device.type == "cuda" else 0
        self._pending: deque[tuple[PendingStep, Tensor, torch.cuda.Event | None]] = deque()

    def add(self, step: PendingStep, norm: Tensor) -> None:
        event = None
        if self._late:
            norm = norm.detach().to("cpu", non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._pending.append((step, norm, event))

    def first_bad(self, *, all_steps: bool = False) -> PendingStep | None:
        """The next step whose norm is not finite, of those old enough to read or all; or None."""
        while self._pending and (all_steps or len(self._pending) > self._late):
            step, norm, event = self._pending.popleft()
            if event:
                wait_for(event)
            if not math.isfinite(float(norm)):
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
