"""A step's numbers on their way from the device to the run directory.

Invariant: looking at a loss makes the host wait for the device, so numbers are collected on the
device and read in one go, about once a second, before every checkpoint, and often enough for
whoever watches the losses to speak up in time.
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
    """Writes an event a step, a little late."""

    def __init__(
        self, events: Events, watch: Callable[[int, float], None] = lambda step, loss: None
    ) -> None:
        self._events, self._watch = events, watch
        self._waiting: list[tuple[dict[str, Any], Tensor, Lap]] = []
        self._read_at = time.monotonic()

    def step(self, sums: Tensor, lap: Lap, **facts: Any) -> None:
        """Note a step: `sums` are loss, top-1 and top-5 hits over this rank's images, and the
        norm of the gradient."""
        self._waiting.append((facts, sums, lap))
        many = len(self._waiting) >= STEPS_BETWEEN_READS
        if many or time.monotonic() - self._read_at > SECONDS_BETWEEN_READS:
            self.flush()

    def flush(self) -> bool:
        """Whether everything noted so far is in the file when this returns."""
        if self._waiting:
            read = torch.stack([sums for _, sums, _ in self._waiting]).tolist()
            for (facts, _, lap), (*sums, norm) in zip(self._waiting, read, strict=True):
                # JSON has no word for what is not a number.
                seen = norm if math.isfinite(norm) else None
                measured = {"parts": lap.parts(), "on_cpu": lap.on_cpu()}
                self._events.write("step", sums=sums, norm=seen, **facts, **measured)
                self._watch(facts["step"], sums[0] / max(facts["images"], 1))
            self._waiting = []
        self._read_at = time.monotonic()
        return self._events.flush()
