"""The numbers of each step, from the device to the run directory.

Invariant: reading a loss makes the host wait for the device. So the numbers are collected on the
device and read together: about once a second, before every checkpoint, and at least every
STEPS_BETWEEN_READS steps, so that an exploding loss is noticed in time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stoker.measure.spans import Lap
from stoker.run.events import Events

SECONDS_BETWEEN_READS = 1.0
STEPS_BETWEEN_READS = 25


class StepLog:
    """Writes an event for each step, a little later; `watch` gets its number and mean loss."""

    def __init__(
        self,
        events: Events,
        watch: Callable[[int, float], None] = lambda step, loss: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.events, self._watch, self._clock = events, watch, clock
        self._waiting: list[tuple[dict[str, Any], Tensor, Lap]] = []
        self._read_at = clock()

    def step(self, sums: Tensor, lap: Lap, **facts: Any) -> None:
        """Log a step. `sums`: loss, top-1 and top-5 hits of this rank's images, gradient norm."""
        self._waiting.append((facts, sums, lap))
        many = len(self._waiting) >= STEPS_BETWEEN_READS
        if many or self._clock() - self._read_at > SECONDS_BETWEEN_READS:
            self.flush()

    def flush(self) -> bool:
        """Write all steps logged so far to the file; False if that failed."""
        if self._waiting:
            read = torch.stack([sums for _, sums, _ in self._waiting]).tolist()
            for (facts, _, lap), (*sums, norm) in zip(self._waiting, read, strict=True):
                # JSON has no NaN and no infinity.
                finite_norm = norm if math.isfinite(norm) else None
                self.events.write("step", sums=sums, norm=finite_norm, **facts, **lap.times())
                self._watch(facts["step"], sums[0] / max(facts["images"], 1))
            self._waiting = []
        self._read_at = self._clock()
        return self.events.flush()
