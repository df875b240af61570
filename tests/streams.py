"""A device whose streams are queues: work happens later, in an order that a seed decides.

It stands in for a GPU behind `train/device.py`'s `Streams`. What is queued runs when the host waits
for an event, or by chance at any call. While a copy is under way its target holds noise, and at its
end a source on the host must be what it was when the copy was queued. So data that is read or
overwritten too early is noticed: the reader gets wrong bytes.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stoker.train.device import COMPUTE, COPY


class Race(AssertionError):
    """Memory was used while a copy of it was under way."""


@dataclass
class Event:
    done: bool = False


@dataclass
class FakeStreams:
    """Streams with delays. `lazy`: the chance that a call lets no queued work happen."""

    seed: int
    lazy: float = 0.7
    without: str = ""
    """The wait that a mutation leaves out."""
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._noise = np.random.default_rng(self.seed)
        self._queues: dict[str, deque[Callable[[], bool]]] = {COPY: deque(), COMPUTE: deque()}
        self._host: list[Tensor] = []

    # -- what training uses

    def host_memory(self, size: int) -> Tensor:
        memory = self._scribbled(size)
        self._host.append(memory)
        return memory

    def device_memory(self, size: int) -> Tensor:
        """Memory that earlier work of COMPUTE still writes to, as an allocator may hand out."""
        memory = self._scribbled(size)
        self._queue(COMPUTE, lambda: self._scribble(memory))
        return memory

    def copy(self, target: Tensor, source: Tensor) -> None:
        self.log.append("copy")
        before = source.clone() if self._is_on_host(source) else None

        def happen() -> None:
            if before is not None and not torch.equal(source, before):
                raise Race("the source of a copy was overwritten before the copy")
            target.copy_(source)

        self._queue(COPY, lambda: self._scribble(target))  # under way
        self._queue(COPY, happen)

    def mark(self, stream: str) -> Event:
        event = Event()
        self._queue(stream, lambda: setattr(event, "done", True))
        return event

    def wait(self, stream: str, event: Event) -> None:
        self.log.append(f"{stream} waits")
        if self.without != f"{stream} waits":
            self._queues[stream].append(lambda: event.done)
        self._perhaps_run()

    def passed(self, event: Event) -> bool:
        self._perhaps_run()
        return event.done or self.without == "host asks"

    def wait_on_host(self, event: Event) -> None:
        self.log.append("host waits")
        if self.without == "host waits":
            return
        while not event.done:
            if not self._run_one():
                raise Race("the host waits for work that cannot happen")

    # -- what a test uses

    def compute(self, work: Callable[[], None]) -> None:
        """Queue work of the model."""
        self._queue(COMPUTE, work)

    def finish(self) -> None:
        """Let all queued work happen."""
        while any(self._queues.values()):
            if not self._run_one():
                raise Race("queued work waits for something that never happens")

    def _queue(self, stream: str, work: Callable[[], object]) -> None:
        def run() -> bool:
            work()
            return True

        self._queues[stream].append(run)
        self._perhaps_run()

    def _perhaps_run(self) -> None:
        while self._random.random() > self.lazy and self._run_one():
            pass

    def _run_one(self) -> bool:
        """Let the first work of some stream happen; False if none can."""
        streams = [stream for stream, queue in self._queues.items() if queue]
        self._random.shuffle(streams)
        for stream in streams:
            if self._queues[stream][0]():
                self._queues[stream].popleft()
                return True
        return False

    def _is_on_host(self, memory: Tensor) -> bool:
        storage = memory.untyped_storage().data_ptr()
        return any(storage == other.untyped_storage().data_ptr() for other in self._host)

    def _scribbled(self, size: int) -> Tensor:
        memory = torch.empty(size, dtype=torch.uint8)
        self._scribble(memory)
        return memory

    def _scribble(self, memory: Tensor) -> None:
        noise = torch.from_numpy(self._noise.integers(0, 256, memory.nbytes, dtype=np.uint8))
        memory.copy_(noise.view(memory.dtype).as_strided(memory.shape, memory.stride()))
