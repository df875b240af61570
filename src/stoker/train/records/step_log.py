"""The numbers of each step, from the device to the run directory.

Invariant: reading a loss makes the host wait for the device. So about once a second, and at least
every STEPS_BETWEEN_READS steps, so that an exploding loss is noticed in time, the steps that the
device has finished are written. Only `flush`, which comes before a checkpoint, waits for the rest.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from stoker.measure.spans import Lap
from stoker.run.events import Events
from stoker.survive.divergence import Late

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
        self._waiting: deque[tuple[dict[str, Any], Late, Lap]] = deque()
        self._read_at = clock()

    def step(self, sums: Late, lap: Lap, **facts: Any) -> None:
        """Log a step. `sums`: loss, top-1 and top-5 hits of this rank's images, gradient norm."""
        self._waiting.append((facts, sums, lap))
        many = len(self._waiting) >= STEPS_BETWEEN_READS
        if many or self._clock() - self._read_at > SECONDS_BETWEEN_READS:
            self.flush_finished()

    def flush(self) -> bool:
        """Write all steps logged so far to the file; False if that failed."""
        return self._write(len(self._waiting))

    def flush_finished(self) -> bool:
        """Write the steps that the device has finished to the file; False if that failed."""
        finished = 0
        for _, sums, lap in self._waiting:
            if not (sums.passed() and lap.passed()):
                break
            finished += 1
        return self._write(finished)

    def _write(self, steps: int) -> bool:
        for _ in range(steps):
            facts, late, lap = self._waiting.popleft()
            *sums, norm = late.numbers().tolist()
            # JSON has no NaN and no infinity.
            finite_norm = norm if math.isfinite(norm) else None
            self.events.write("step", sums=sums, norm=finite_norm, **facts, **lap.times())
            self._watch(facts["step"], sums[0] / max(facts["images"], 1))
        self._read_at = self._clock()
        return self.events.flush()
