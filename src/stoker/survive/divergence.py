"""Bad numbers: seen before the weights are.

Invariants: the norm of the whole batch's gradient is the same number on every rank, so all ranks
come to the same judgement at the same step without asking each other; a number that is not finite
on one rank is not finite on any after the exchange. On a GPU the optimiser itself skips such a step
and the host reads the norm two steps late, when it is there anyway: it never waits for the device.
Whether the loss explodes is seen from the losses on their way to the log.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

LATE_STEPS = 2
"""How many steps late a GPU's numbers are read."""
FAR_ABOVE_CHANCE = 1.5
"""A loss beyond this many times that of guessing, and at least 1 above it, is not learning."""
PATIENCE_STEPS = 20


@dataclass(frozen=True)
class JudgedStep:
    """What a rank knows of a step of its own when the norm of it is judged, maybe later."""

    step: int
    sums: Tensor
    starved: bool = False
    """Whether this rank ran out of memory in it."""


class Sentinel:
    """Watches a number a step, without ever waiting for the device."""

    def __init__(self, device: torch.device) -> None:
        self._late = LATE_STEPS if device.type == "cuda" else 0
        self._waiting: deque[tuple[JudgedStep, Tensor, torch.cuda.Event | None]] = deque()

    def see(self, seen: JudgedStep, number: Tensor) -> None:
        event = None
        if self._late:
            number = number.detach().to("cpu", non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        self._waiting.append((seen, number, event))

    def bad(self, *, all_of_them: bool = False) -> JudgedStep | None:
        """The first step whose number is not finite, among those that are old enough."""
        while self._waiting and (all_of_them or len(self._waiting) > self._late):
            seen, number, event = self._waiting.popleft()
            if event:
                event.synchronize()
            if not math.isfinite(float(number)):
                return seen
        return None


@dataclass
class LossWatch:
    """Counts the steps on which the loss is far above that of guessing."""

    chance: float
    """The loss of guessing: the logarithm of the number of classes. Infinite: nobody watches."""
    from_step: int = 0
    """Earlier steps do not count: the warm-up."""
    high: int = 0
    """Steps in a row with a loss that is far too high."""
    streak: int = 0
    """Those of them that count."""
    since: int = 0
    """The first of them."""
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
