"""Batches of images from files and archives, made ahead by threads.

Invariants: batches are those of the items in their order, whatever the number of threads. At most
`prefetch` batches are made at a time, and at most HELD_BYTES of bytes that were read from an
archive wait for a thread, plus one image. An image that cannot be used keeps its place in its
batch, in black, with the reason.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

import cv2
import numpy as np

from stoker.data.loading.loader import (
    DECODERS,
    BatchMemory,
    Loaded,
    PlainMemory,
    end_threads,
    wait_for,
)
from stoker.data.sources.item import Item
from stoker.recipe.schedule import Batch
from stoker.use.prepare import Pixels, Preparation

HELD_BYTES = 64 << 20
CHUNK, CHUNK_BYTES = 8, 4 << 20
"""Images of one task, and bytes from an archive after which it has no more of them."""


@dataclass
class NamedBatch:
    """Some images as the model takes them, their names, and why one cannot be used."""

    names: list[str]
    errors: list[str | None]
    loaded: Loaded


class HeldBytes:
    """The bytes that wait for a thread. `take` waits until there is room for more."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes, self._changed = limit, 0, threading.Condition()

    def take(self, count: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes or self._bytes + count <= self._limit)
            self._bytes += count

    def give_back(self, count: int) -> None:
        with self._changed:
            self._bytes -= count
            self._changed.notify_all()


@dataclass
class _Growing:
    """A batch whose items are still being read."""

    images: Pixels
    names: list[str] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)
    futures: list[Future[None]] = field(default_factory=list)


class FileLoader:
    """Makes batches of `batch_size` images of `image_size` pixels a side."""

    def __init__(
        self,
        preparation: Preparation,
        batch_size: int,
        image_size: int,
        *,
        threads: int,
        prefetch: int = 3,
        memory: BatchMemory | None = None,
    ) -> None:
        self._preparation, self._prefetch = preparation, prefetch
        self._shape = (batch_size, image_size, image_size, 3)
        self._memory = memory or PlainMemory()
        self._held = HeldBytes(HELD_BYTES)
        cv2.setNumThreads(0)  # its own threads would compete with ours
        self._threads = ThreadPoolExecutor(threads, DECODERS)

    def close(self, patience_s: float = 1.0) -> None:
        """End the threads. Waits at most `patience_s` for one that is blocked by its storage."""
        end_threads(self._threads, patience_s)

    def batches(self, items: Iterator[Item]) -> Iterator[NamedBatch]:
        """Yield all items in batches, in order. Images are valid until the next one is requested.
        Raises what `items` raises, after the batches before it."""
        ahead: deque[_Growing] = deque()
        trouble: Exception | None = None
        ended = False
        while True:
            while not ended and len(ahead) < self._prefetch:
                growing = _Growing(self._memory.take(self._shape))
                ahead.append(growing)
                try:
                    ended = self._grow(growing, items)
                except Exception as error:
                    ended, trouble = True, error
            if not ahead:
                break
            growing = ahead.popleft()
            wait_for(growing.futures, lambda seconds: None)
            if growing.names:
                yield self._finished(growing)
            self._memory.give_back(growing.images)
        if trouble:
            raise trouble

    def _finished(self, growing: _Growing) -> NamedBatch:
        count = len(growing.names)
        images, numbers = growing.images, np.zeros(count, np.int64)
        if count < len(images):
            images = images[:count].copy()  # the way to a GPU knows whole buffers only
        batch = Batch(0, 0, count, self._shape[1])
        loaded = Loaded(batch, images, numbers, numbers, numbers)
        return NamedBatch(growing.names, growing.errors, loaded)

    def _grow(self, growing: _Growing, items: Iterator[Item]) -> bool:
        """Fill a batch; returns whether the items have ended."""
        chunk: list[Item] = []
        try:
            for item in islice(items, self._shape[0]):
                growing.names.append(item.name)
                growing.errors.append(None)
                chunk.append(item)
                if len(chunk) == CHUNK or size_of(chunk) >= CHUNK_BYTES:
                    self._submit(growing, chunk)
                    chunk = []
        finally:
            self._submit(growing, chunk)
        return len(growing.names) < self._shape[0]

    def _submit(self, growing: _Growing, chunk: list[Item]) -> None:
        if chunk:
            self._held.take(size_of(chunk))
            first = len(growing.names) - len(chunk)
            growing.futures.append(self._threads.submit(self._run, growing, chunk, first))

    def _run(self, growing: _Growing, chunk: list[Item], first: int) -> None:
        size = size_of(chunk)
        try:
            for number, item in enumerate(chunk, first):
                growing.errors[number] = self._preparation.fill(item, growing.images[number])
        finally:
            self._held.give_back(size)


def size_of(items: list[Item]) -> int:
    """Bytes that these items hold."""
    return sum(len(item.data) for item in items if item.data is not None)
