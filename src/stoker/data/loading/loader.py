"""Batches in order, made ahead by threads.

Invariants: the bytes of a batch depend on (set, seed, position) alone: not on the number of
threads, of ranks, or of batches made ahead. Threads decode into buffers that are used again and
again; at most `prefetch` batches are in the making, so memory is bounded. No worker process, no
shared memory, nothing to clean up after a kill.

    plan -> order (which samples) -> crops (which part) -> threads (bytes -> pixels) -> batch
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from stoker.data.dataset import SplitIndex
from stoker.data.loading.crops import Boxes, View, boxes
from stoker.data.loading.damage import Damage
from stoker.data.loading.order import Arrangement
from stoker.data.loading.render import RENDERERS, scratch
from stoker.data.loading.small_images import CACHE_BYTES, SmallImages, suits
from stoker.errors import StokerError
from stoker.faults import reach
from stoker.host.limits import usable_cores
from stoker.recipe.schedule import Batch, cuts

Ints = NDArray[np.int64]
Pixels = NDArray[np.uint8]
Allocate = Callable[[tuple[int, ...]], Pixels]

LOOK_UP_S = 0.2
"""How often somebody who waits for a batch looks up."""
DECODERS = "stoker-decode"
"""How the names of decoding threads begin."""
LOOK_AHEAD = 16
"""How many batches ahead the order is asked for."""
CHUNK = 16
"""Images a thread takes at a time: enough to forget the queue, few enough to share the end."""
WORK = ("read", "decode", "cpu", "read_cpu")
"""What threads spend on a batch: time on reading and on decoding, time on the CPU for both, and on
it for reading."""
SMALL_CHUNK = 128
"""The same where many are done by one call."""


@dataclass
class Loaded:
    """One rank's part of a batch. Valid until the next one is asked for."""

    batch: Batch
    images: Pixels
    labels: Ints
    samples: Ints
    epochs: Ints
    making: list[Future[None]] = field(default_factory=list, repr=False)
    spent: list[tuple[float, ...]] = field(default_factory=list, repr=False)
    """Seconds that threads spent on some of its images: see WORK."""

    @property
    def work(self) -> dict[str, float]:
        """What making it took, in seconds of threads."""
        sums = map(sum, zip(*self.spent, strict=True)) if self.spent else [0.0] * len(WORK)
        return {name: round(seconds, 6) for name, seconds in zip(WORK, sums, strict=True)}


def wait_for(making: Iterable[Future[None]], waiting: Callable[[float], None]) -> None:
    """Until all is made; an error of the making is raised here."""
    began = time.monotonic()
    for future in making:
        while True:
            try:
                future.result(LOOK_UP_S)
                break
            except TimeoutError:
                if future.done():
                    future.result()
                    break
                waiting(time.monotonic() - began)


def plain_memory(shape: tuple[int, ...]) -> Pixels:
    return np.empty(shape, dtype=np.uint8)


class Loader:
    """Makes batches of one split as one rank sees them."""

    def __init__(
        self,
        split: SplitIndex,
        order: Arrangement,
        view: View,
        *,
        rank: int = 0,
        world: int = 1,
        threads: int = 0,
        prefetch: int = 3,
        allocate: Allocate = plain_memory,
        cache_bytes: int = CACHE_BYTES,
        on_damage: str = "stop",
        tell: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.split, self.order, self.view = split, order, view
        self.rank, self.world = rank, world
        self.prefetch = prefetch
        self._allocate = allocate
        self._damage = Damage(split, on_damage == "substitute")
        self._tell = tell
        self._render = RENDERERS[split.codec]
        lanes = getattr(order, "lanes", 1)
        fits = suits(split, lanes, cache_bytes)
        self._small = SmallImages(split, cache_bytes) if fits else None
        self._largest = split.largest[0]
        self._shape: tuple[int, ...] = ()
        self._free: list[Pixels] = []
        # OpenCV's own threads would fight ours for the same cores.
        cv2.setNumThreads(0)
        self.threads = threads or usable_cores()
        self._threads = ThreadPoolExecutor(self.threads, DECODERS)

    def close(self, patience_s: float = 1.0) -> None:
        """End the threads, but do not wait for ever on one that hangs in its storage."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        give_up = time.monotonic() + patience_s
        while time.monotonic() < give_up and any(t.is_alive() for t in self._threads._threads):
            time.sleep(0.002)

    def batches(
        self, plan: Iterable[Batch], waiting: Callable[[float], None] = lambda seconds: None
    ) -> Iterator[Loaded]:
        """The rank's part of each batch of a plan, in order. `waiting` is told now and then for how
        long a batch has kept the caller waiting, and may raise."""
        ahead: deque[Loaded] = deque()
        coming = iter(plan)
        try:
            while True:
                while len(ahead) < self.prefetch and (batch := next(coming, None)) is not None:
                    ahead.append(self._begin(batch))
                if not ahead:
                    return
                loaded = ahead.popleft()
                wait_for(loaded.making, waiting)
                for words in self._damage.news():
                    self._tell(words)
                yield loaded
                if loaded.images.shape == self._shape:
                    self._free.append(loaded.images)
        finally:
            for loaded in ahead:
                for future in loaded.making:
                    future.cancel()

    def _begin(self, batch: Batch) -> Loaded:
        """Decide everything about a batch and set the threads to work on it."""
        edges = cuts(batch.size, self.world)
        begin, end = edges[self.rank], edges[self.rank + 1]
        samples, epochs = self.order.part(batch.position, batch.size, begin, end)
        sizes = self.split.widths[samples], self.split.heights[samples]
        seen = boxes(self.view, batch.image_size, samples, epochs, *sizes)
        shape = (len(samples), batch.image_size, batch.image_size, 3)
        images = self._buffer(shape)
        loaded = Loaded(batch, images, self.split.labels[samples], samples, epochs)
        chunk = SMALL_CHUNK if self._small else CHUNK
        loaded.making = [
            self._threads.submit(self._fill, loaded, seen, start, min(start + chunk, len(samples)))
            for start in range(0, len(samples), chunk)
        ]
        # Made by a thread, so that whoever trains does not pause where an epoch begins.
        ahead = batch.position + LOOK_AHEAD * batch.size
        self._threads.submit(self.order.look_ahead, ahead, batch.size)
        return loaded

    def _buffer(self, shape: tuple[int, ...]) -> Pixels:
        """A buffer for a batch; those of another size (a past phase) are let go."""
        if shape != self._shape:
            self._shape, self._free = shape, []
        return self._free.pop() if self._free else self._allocate(shape)

    def _fill(self, loaded: Loaded, seen: Boxes, start: int, stop: int) -> None:
        """Decode some images of a batch into their places."""
        began, cpu = time.perf_counter(), time.thread_time()
        read, read_cpu = self._make(loaded, seen, start, stop)
        took = time.perf_counter() - began
        loaded.spent.append((read, took - read, time.thread_time() - cpu, read_cpu))

    def _make(self, loaded: Loaded, seen: Boxes, start: int, stop: int) -> tuple[float, float]:
        """The same; how many seconds of it went into reading, by the clock and on the CPU."""
        reach("decode")
        chosen = loaded.samples[start:stop]
        if self._small:
            boxed = seen.edges[start:stop], seen.flip[start:stop]
            return self._small.fill(chosen, *boxed, loaded.images[start:stop]), 0.0
        read, read_cpu, clock, cpu_clock = 0.0, 0.0, time.perf_counter, time.thread_time
        todo = zip(
            chosen.tolist(),
            self.split.widths[chosen].tolist(),
            self.split.heights[chosen].tolist(),
            seen.edges[start:stop].tolist(),
            seen.flip[start:stop].tolist(),
            loaded.images[start:stop],
            strict=True,
        )
        room = scratch(self._largest, "stored")
        for place, (sample, width, height, box, flip, out) in enumerate(todo, start):
            asked, used = clock(), cpu_clock()
            data = self.split.bytes_of(sample, room)
            read, read_cpu = read + clock() - asked, read_cpu + cpu_clock() - used
            try:
                self._render(data, width, height, box, flip, out)
            except (ValueError, cv2.error) as error:
                self._stand_in(loaded, place, error)
        return read, read_cpu

    def _stand_in(self, loaded: Loaded, place: int, error: Exception) -> None:
        """Put another image, with its own label, where one no longer decodes."""
        epoch = loaded.epochs[place : place + 1]
        damaged = int(loaded.samples[place])
        for sample in self._damage.instead_of(damaged, int(epoch[0]), error):
            other = np.array([sample])
            width, height = self.split.widths[other], self.split.heights[other]
            seen = boxes(self.view, loaded.batch.image_size, other, epoch, width, height)
            box, flip, out = seen.edges[0].tolist(), bool(seen.flip[0]), loaded.images[place]
            data = self.split.bytes_of(sample, scratch(self._largest, "stored"))
            with suppress(ValueError, cv2.error):
                self._render(data, int(width[0]), int(height[0]), box, flip, out)
                loaded.labels[place] = self.split.labels[sample]
                return
        raise StokerError(f"no image found to stand in for sample {damaged}") from error
