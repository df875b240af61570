"""A step's numbers on their way from the device to the run directory.

Invariant: looking at a loss makes the host wait for the device, so numbers are collected on the
device and read in one go, about once a second and before every checkpoint.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from stoker.run import Events

SECONDS_BETWEEN_READS = 1.0


class StepLog:
    """Writes an event a step, a little late."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._waiting: list[tuple[dict[str, Any], Tensor]] = []
        self._read_at = time.monotonic()

    def step(self, sums: Tensor, **facts: Any) -> None:
        """Note a step: `sums` are loss, top-1 and top-5 hits over this rank's images."""
        self._waiting.append((facts, sums))
        if time.monotonic() - self._read_at > SECONDS_BETWEEN_READS:
            self.flush()

    def flush(self) -> bool:
        """Whether everything noted so far is in the file when this returns."""
        if self._waiting:
            read = torch.stack([sums for _, sums in self._waiting]).tolist()
            for (facts, _), sums in zip(self._waiting, read, strict=True):
                self._events.write("step", sums=sums, **facts)
            self._waiting = []
        self._read_at = time.monotonic()
        return self._events.flush()
