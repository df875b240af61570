"""Batches in order, made ahead by threads.

Invariants: the bytes of a batch depend on (set, seed, position) alone: not on the number of
threads, of ranks, or of batches made ahead. Threads decode into buffers that are reused, and at
most `prefetch` batches are made at a time, so memory is bounded. There are no worker processes and
no shared memory, so a kill leaves nothing to clean up. The thread that asks for batches only waits:
a decoding thread draws which samples a batch has, which part of each is shown, and what else the
training step needs to know of it.

    plan -> buffer -> in threads: order (which samples) -> crops (which part) -> bytes -> pixels
    -> augmentation
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from stoker.data.dataset import SplitIndex
from stoker.data.loading import chunk_call
from stoker.data.loading.augment import augment
from stoker.data.loading.chunk_call import ChunkCall
from stoker.data.loading.crops import Boxes, View, boxes
from stoker.data.loading.damage import Damage
from stoker.data.loading.hash_check import MISMATCH, HashCheck
from stoker.data.loading.order import Arrangement, Order
from stoker.data.loading.render import RENDERERS, render_jpeg, scratch
from stoker.data.loading.small_images import CACHE_BYTES, SmallImages, suits
from stoker.data.shards import print_note
from stoker.errors import StokerError
from stoker.faults import is_armed, reach
from stoker.host.limits import usable_cores
from stoker.recipe.schedule import Batch, cuts

Ints = NDArray[np.int64]
Pixels = NDArray[np.uint8]
ReadSeconds = tuple[float, float]
"""Seconds of reading, and their CPU time."""

WAIT_REPORT_S = 0.2
"""Seconds between two calls of `waiting` while a batch is not ready."""
DECODERS = "stoker-decode"
LOOK_AHEAD = 16
"""How many batches ahead the order is computed."""
CHUNK = 16
"""Images of one task: enough to make the queue cheap, few enough to share the end of a batch."""
SMALL_CHUNK = 128
"""Images of one task where one call makes many of them."""
SHARDS_AHEAD = 4
"""Shards of a store that are fetched ahead where samples come in the order of the set."""
TRIES_AGAIN = 3
"""How often a damaged image of a store is read again before it counts as damaged."""
MOST_CHUNKS = 4
"""With the compiled extra a task has up to so many times these images."""
WORK = ("read", "decode", "cpu", "read_cpu")
"""Seconds of threads on a batch: reading, decoding, CPU time of both, CPU time of reading."""


@dataclass
class Loaded:
    """One rank's part of a batch. Its images are valid until the next batch is requested."""

    batch: Batch
    images: Pixels
    labels: Ints
    samples: Ints
    epochs: Ints
    drawn: Any = None
    """What `LoaderOptions.draw` returned for this part."""
    futures: list[Future[None]] = field(default_factory=list, repr=False)
    chunk_seconds: list[tuple[float, ...]] = field(default_factory=list, repr=False)
    """For each finished task, its seconds in the order of WORK."""

    @property
    def work(self) -> dict[str, float]:
        """Seconds that all threads together spent on this part, by the names of WORK."""
        sums = [sum(column) for column in zip(*self.chunk_seconds, strict=True)]
        return {name: round(s, 6) for name, s in zip(WORK, sums or [0.0] * 4, strict=True)}


class BatchMemory(Protocol):
    """The buffers of batches. Both are called by the thread that asks for batches."""

    def take(self, shape: tuple[int, ...]) -> Pixels: ...

    def give_back(self, images: Pixels) -> None: ...


class PlainMemory:
    """Buffers that are free as soon as they are given back; those of a past phase are dropped."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()
        self._free: list[Pixels] = []

    def take(self, shape: tuple[int, ...]) -> Pixels:
        if shape != self._shape:
            self._shape, self._free = shape, []
        return self._free.pop() if self._free else self._make(shape)

    def _make(self, shape: tuple[int, ...]) -> Pixels:
        return np.empty(shape, dtype=np.uint8)

    def give_back(self, images: Pixels) -> None:
        if images.shape == self._shape:
            self._free.append(images)


@dataclass(frozen=True)
class LoaderOptions:
    """Settings of a loader that most callers leave alone."""

    memory: Callable[[], BatchMemory] = PlainMemory
    """Makes the memory of a loader's batches."""
    draw: Callable[[Batch, Ints, Ints], Any] = lambda batch, samples, epochs: None
    """What else a step needs for the samples of a batch in their epochs, drawn ahead of it."""
    cache_bytes: int = CACHE_BYTES
    """Memory for whole shards of small images; sets that need more are read image by image."""
    on_damage: str = "stop"
    """`substitute` shows another image in place of a damaged one."""
    compiled: bool = True
    """Use the compiled extra where it is installed; the bytes are the same without it."""
    check_hashes: bool = True
    """Compare each image with its hash when it is first read."""
    report: Callable[[str], None] = print_note
    """Called with a message for each damaged image that was replaced, and about a store that has
    failed for some seconds, by the thread that asks for batches."""
    read: Callable[[int, bytearray], memoryview] | None = None
    """Returns a sample's stored bytes; without it they are read from the split's shards."""
    fill: Callable[[Loaded, Boxes | None, int, int], ReadSeconds] | None = None
    """Makes the images from one number to another in place of reading and decoding."""
    finish: Callable[[Loaded, int, int], None] = lambda loaded, start, stop: None
    """What else the decoding threads do with the images from one number to another."""


DEFAULTS = LoaderOptions()


def wait_for(futures: Iterable[Future[None]], waiting: Callable[[float], None]) -> None:
    """Return when all futures are done; raise the error of the first that failed."""
    began = time.monotonic()
    for future in futures:
        while not (future.done() or wait([future], WAIT_REPORT_S).done):
            waiting(time.monotonic() - began)
        future.result()


def end_threads(threads: ThreadPoolExecutor, patience_s: float) -> None:
    """End some threads. Waits at most `patience_s` for one that is blocked by its storage."""
    threads.shutdown(wait=False, cancel_futures=True)
    give_up = time.monotonic() + patience_s
    while time.monotonic() < give_up and any(t.is_alive() for t in threads._threads):
        time.sleep(0.002)


class BatchLoader:
    """Makes one rank's part of the batches of a split."""

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
        options: LoaderOptions = DEFAULTS,
    ) -> None:
        self.split, self.order, self.view = split, order, view
        self.rank, self.world, self.prefetch, self.options = rank, world, prefetch, options
        self._damage = Damage(split, options.on_damage == "substitute")
        self._render = RENDERERS[split.codec]
        if not options.compiled and split.codec != "raw":
            self._render = partial(render_jpeg, compiled=False)
        self._hashes = HashCheck(split, options.check_hashes)
        self._read = options.read or split.bytes_of
        fits = suits(split, getattr(order, "lanes", 1), options.cache_bytes)
        self._small = SmallImages(split, options.cache_bytes, self._hashes) if fits else None
        compiled = options.compiled and chunk_call.extra is not None and not is_armed("read")
        self._chunks = ChunkCall(split, view, self._hashes, options.read) if compiled else None
        self._largest = split.largest[0]
        self._gathers = not (split.source.is_local or options.read or options.fill or self._small)
        self._memory = options.memory()
        self._notes: deque[str] = deque()
        split.source.tell(self._notes.append)
        # OpenCV's own threads would compete with ours for the same cores.
        cv2.setNumThreads(0)
        self.threads = threads or usable_cores()
        self._threads = ThreadPoolExecutor(self.threads, DECODERS)

    def close(self, patience_s: float = 1.0) -> None:
        """End the threads. Waits at most `patience_s` for one that is blocked by its storage."""
        self.split.close()
        end_threads(self._threads, patience_s)

    def batches(
        self, plan: Iterable[Batch], waiting: Callable[[float], None] = lambda seconds: None
    ) -> Iterator[Loaded]:
        """Yield the rank's part of each batch, in order. Until one is ready, `waiting` is called
        with the seconds waited; it may raise. Raises StokerError for a damaged shard or image."""
        ahead, remaining = deque[Loaded](), iter(plan)
        try:
            while True:
                while len(ahead) < self.prefetch and (batch := next(remaining, None)) is not None:
                    ahead.append(self._begin(batch))
                if not ahead:
                    return
                loaded = ahead.popleft()
                self._follow(loaded.batch)
                wait_for(loaded.futures, partial(self._while_waiting, waiting))
                self._report()
                yield loaded
                self._memory.give_back(loaded.images)
        finally:
            for future in [future for loaded in ahead for future in loaded.futures]:
                future.cancel()

    def _while_waiting(self, waiting: Callable[[float], None], seconds: float) -> None:
        self._report()
        waiting(seconds)

    def _report(self) -> None:
        for message in self._damage.new_messages():
            self.options.report(message)
        while self._notes:
            self.options.report(self._notes.popleft())

    def _follow(self, batch: Batch) -> None:
        """Tell the shards that a batch is next, so that those behind it are fetched."""
        source = self.split.source
        if not source.is_local:
            source.follow(partial(self._upcoming, batch))

    def _upcoming(self, batch: Batch) -> Iterable[int]:
        """The shards that this rank needs from a batch on, the soonest first."""
        if isinstance(self.order, Order):
            edges = cuts(batch.size, self.world)
            lanes = self.order.lanes_of(batch.position, batch.size, *edges[self.rank :][:2])
            return self.order.upcoming(batch.position, lanes)
        first = int(self.order.part(batch.position, batch.size, 0, 1)[0][0])
        shard = int(self.split.shard[first])
        return range(shard, min(shard + SHARDS_AHEAD, len(self.split.shards)))

    def _begin(self, batch: Batch) -> Loaded:
        """Have this rank's part of a batch made."""
        edges = cuts(batch.size, self.world)
        count = edges[self.rank + 1] - edges[self.rank]
        images = self._memory.take((count, batch.image_size, batch.image_size, 3))
        loaded = Loaded(batch, images, none := np.empty(0, np.int64), none, none)
        loaded.futures.append(self._threads.submit(self._draw, loaded, edges[self.rank]))
        return loaded

    def _draw(self, loaded: Loaded, begin: int) -> None:
        """Choose the samples and their crops, and hand them out to the threads in chunks."""
        began, cpu_began = time.perf_counter(), time.thread_time()
        batch, count = loaded.batch, len(loaded.images)
        samples, epochs = self.order.part(batch.position, batch.size, begin, begin + count)
        crops = self._crops(batch.image_size, samples, epochs)
        loaded.samples, loaded.epochs = samples, epochs
        loaded.labels = self.split.labels[samples]
        loaded.drawn = self.options.draw(batch, samples, epochs)
        chunk = self._chunk_images(count)
        # Before this task ends: a thread that has waited for it then waits for these.
        loaded.futures.extend(
            self._threads.submit(self._run, loaded, crops, start, min(start + chunk, count))
            for start in range(0, count, chunk)
        )
        wall_s, cpu_s = time.perf_counter() - began, time.thread_time() - cpu_began
        loaded.chunk_seconds.append((0.0, wall_s, cpu_s, 0.0))
        # A task of its own: it may take long at the end of an epoch, and nothing waits for it.
        ahead = batch.position + LOOK_AHEAD * batch.size
        self._threads.submit(self._look_ahead, ahead, batch.size, begin, begin + count)

    def _look_ahead(self, *part: int) -> None:
        """Have the order and the index of a part of a later batch at hand."""
        self.order.look_ahead(*part)
        if self.split.is_parted:
            self.split.rows.prepare(self.order.part(*part)[0])

    def _chunk_images(self, count: int) -> int:
        """Images of one task, for a batch of so many. A task hands the interpreter lock over a few
        times, with the extra hardly more often: then tasks are as large as threads are busy."""
        least = SMALL_CHUNK if self._small else CHUNK
        if self._chunks is None:
            return least
        return min(MOST_CHUNKS * least, max(least, count * self.prefetch // self.threads))

    def _crops(self, image_size: int, samples: Ints, epochs: Ints) -> Boxes | None:
        """The boxes of some samples; None where the call that shows them draws them."""
        if self._chunks and self.options.fill is None:
            return None
        return self._boxes(image_size, samples, epochs)

    def _boxes(self, image_size: int, samples: Ints, epochs: Ints) -> Boxes:
        sizes = self.split.widths[samples], self.split.heights[samples]
        return boxes(self.view, image_size, samples, epochs, *sizes)

    def _run(self, loaded: Loaded, crops: Boxes | None, start: int, stop: int) -> None:
        """Make the images from start to stop, and record the seconds that it took."""
        began, cpu_began = time.perf_counter(), time.thread_time()
        reach("decode")
        fill = self.options.fill or (self._fill_small if self._small else self._fill_each)
        if self._gathers:
            self.split.gather(loaded.samples[start:stop])
        gather_s = time.perf_counter() - began
        read_s, read_cpu_s = fill(loaded, crops, start, stop)
        read_s += gather_s if self._gathers else 0.0
        if self.view.augmentation.changes_pixels:
            samples, epochs = loaded.samples[start:stop], loaded.epochs[start:stop]
            images = loaded.images[start:stop]
            augment(self.view.augmentation, self.view.seed, samples, epochs, images)
        self.options.finish(loaded, start, stop)
        wall_s, cpu_s = time.perf_counter() - began, time.thread_time() - cpu_began
        loaded.chunk_seconds.append((read_s, wall_s - read_s, cpu_s, read_cpu_s))

    def _fill_small(
        self, loaded: Loaded, crops: Boxes | None, start: int, stop: int
    ) -> ReadSeconds:
        """Many images by one call. The CPU time of reading is not measured and counts as 0."""
        assert self._small is not None
        some = slice(start, stop)
        samples, images = loaded.samples[some], loaded.images[some]
        if crops is None:
            read_s = self._small.fill_drawn(samples, loaded.epochs[some], self.view, images)
        else:
            read_s = self._small.fill(samples, crops.edges[some], crops.flip[some], images)
        if self._hashes.damaged:
            for number, sample in enumerate(samples.tolist(), start):
                if sample in self._hashes.damaged:
                    self._substitute(loaded, number, ValueError(MISMATCH))
        return read_s, 0.0

    def _fill_each(self, loaded: Loaded, crops: Boxes | None, start: int, stop: int) -> ReadSeconds:
        """Images of any size: by one call where the extra is in use, what is left one by one."""
        read_s, read_cpu_s, clock, cpu_clock = 0.0, 0.0, time.perf_counter, time.thread_time
        samples, epochs = loaded.samples[start:stop], loaded.epochs[start:stop]
        numbers: Sequence[int] = range(start, stop)
        if crops is None:
            assert self._chunks is not None
            rest, read_s, read_cpu_s = self._chunks.fill(samples, epochs, loaded.images[start:stop])
            if not rest:
                return read_s, read_cpu_s
            numbers, samples, epochs = [start + k for k in rest], samples[rest], epochs[rest]
            crops = self._boxes(loaded.batch.image_size, samples, epochs)
        else:
            crops = Boxes(crops.edges[start:stop], crops.flip[start:stop])
        rows = zip(
            numbers,
            samples.tolist(),
            self.split.widths[samples].tolist(),
            self.split.heights[samples].tolist(),
            crops.edges.tolist(),
            crops.flip.tolist(),
            strict=True,
        )
        buffer, check = scratch(self._largest, "stored"), self._hashes.check
        for number, sample, width, height, box, flip in rows:
            began, cpu_began = clock(), cpu_clock()
            data = self._read(sample, buffer)
            read_s, read_cpu_s = read_s + clock() - began, read_cpu_s + cpu_clock() - cpu_began
            try:
                check(sample, data)
                self._render(data, width, height, box, flip, loaded.images[number])
            except (ValueError, cv2.error) as error:
                self._substitute(loaded, number, error)
        return read_s, read_cpu_s

    def _substitute(self, loaded: Loaded, number: int, error: Exception) -> None:
        """Show another image, with its own label. Raises StokerError where that is not allowed."""
        epoch = loaded.epochs[number : number + 1]
        damaged = int(loaded.samples[number])
        substitutes = self._damage.substitutes(damaged, int(epoch[0]), error)
        renew = partial(self.split.source.renew, int(self.split.shard[damaged]))
        again = (damaged for _ in range(TRIES_AGAIN) if renew())
        for sample in chain(again, substitutes):
            other = np.array([sample])
            width, height = self.split.widths[other], self.split.heights[other]
            crop = boxes(self.view, loaded.batch.image_size, other, epoch, width, height)
            box, flip, out = crop.edges[0].tolist(), bool(crop.flip[0]), loaded.images[number]
            data = self._read(sample, scratch(self._largest, "stored"))
            with suppress(ValueError, cv2.error):
                self._hashes.check(sample, data)
                self._render(data, int(width[0]), int(height[0]), box, flip, out)
                loaded.labels[number] = self.split.labels[sample]
                return
        raise StokerError(f"no intact image found to show in place of sample {damaged}") from error
