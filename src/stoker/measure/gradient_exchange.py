"""How long ranks wait for each other's gradients, measured by DDP's communication hook.

Invariants: the arithmetic is that of DDP, to the bit: each gradient is multiplied by one over the
number of ranks, then summed. Nothing waits for the device. Each bucket (25 MB) costs one call.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from stoker.measure.spans import Spans


class GradientExchange:
    """Measures the gradient exchange of one model."""

    def __init__(self, spans: Spans, model: DistributedDataParallel) -> None:
        self._spans = spans
        self._group = model.process_group
        self._scale = 1.0 / dist.get_world_size(self._group)
        self._lock = threading.Lock()
        self._pending = self._bytes = 0
        self._since = self._busy_s = 0.0
        model.register_comm_hook(None, lambda state, bucket: self._send(bucket.buffer()))

    def _send(self, gradients: torch.Tensor) -> Future[torch.Tensor]:
        gradients.mul_(self._scale)
        self._spans.launched()
        with self._lock:
            self._bytes += gradients.nbytes
            self._since = self._since if self._pending else time.perf_counter()
            self._pending += 1
        work = dist.all_reduce(gradients, group=self._group, async_op=True)
        assert work is not None
        future: Future[torch.Tensor] = work.get_future().then(self._arrived)
        return future

    def _arrived(self, future: Future[Any]) -> torch.Tensor:
        gradients: torch.Tensor = future.value()[0]
        with self._lock:
            self._pending -= 1
            if not self._pending and not gradients.is_cuda:
                self._busy_s += time.perf_counter() - self._since
        return gradients

    def take(self) -> tuple[int, float]:
        """Bytes since the last call, and seconds with some of them on their way; 0 on a GPU."""
        with self._lock:
            totals = self._bytes, round(self._busy_s, 6)
            self._bytes, self._busy_s = 0, 0.0
        return totals
