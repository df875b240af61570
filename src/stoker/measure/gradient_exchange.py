"""How long ranks wait for each other's gradients: watched through DDP's communication hook.

Invariants: the arithmetic is DDP's own, to the bit: each gradient is scaled by one over the number
of ranks, then summed. Nothing waits for the device. Watching costs a call a bucket, of some 25 MB.
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
    """Watches the gradients of one network travel."""

    def __init__(self, spans: Spans, network: DistributedDataParallel) -> None:
        self._spans = spans
        self._group = network.process_group
        self._scale = 1.0 / dist.get_world_size(self._group)
        self._lock = threading.Lock()
        self._under_way = 0
        self._since = self._busy_s = 0.0
        self._bytes = 0
        network.register_comm_hook(None, lambda state, bucket: self._send(bucket.buffer()))

    def _send(self, gradients: torch.Tensor) -> Future[torch.Tensor]:
        gradients.mul_(self._scale)
        self._spans.launched()
        with self._lock:
            self._bytes += gradients.nbytes
            self._since = self._since if self._under_way else time.perf_counter()
            self._under_way += 1
        work = dist.all_reduce(gradients, group=self._group, async_op=True)
        assert work is not None
        future: Future[torch.Tensor] = work.get_future().then(self._arrived)
        return future

    def _arrived(self, future: Future[Any]) -> torch.Tensor:
        with self._lock:
            self._under_way -= 1
            if not self._under_way and not future.value()[0].is_cuda:
                self._busy_s += time.perf_counter() - self._since
        gradients: torch.Tensor = future.value()[0]
        return gradients

    def take(self) -> tuple[int, float]:
        """Bytes of gradients since the last time, and for how many seconds some of them were on
        their way; 0 on a GPU, where the host does not see them arrive."""
        with self._lock:
            taken = self._bytes, round(self._busy_s, 6)
            self._bytes, self._busy_s = 0, 0.0
        return taken
