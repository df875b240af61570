"""How fast a packed set can be loaded on this machine, each stage alone.

Invariants: every stage loads the same images, in the order and with the crops of training, on the
same threads, for at most `seconds` and at most once. Every batch that was begun is counted. A cold
pass records how much of its shards was still in the page cache. A warm pass repeats the images of
the cold one. Of a large set only as many shards are used as time and memory allow.

    synthetic    batches copied from one image in memory: order, crops, hand-over
    decode       stored bytes that are in memory already
    read         stored bytes, not decoded: cold (from the disk), then warm (from the page cache)
    loader       reading and decoding: cold, then warm
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.loading import chunk_call
from stoker.data.loading.augment import NONE, Augmentation
from stoker.data.loading.crops import Boxes, View
from stoker.data.loading.loader import (
    CHUNK,
    DEFAULTS,
    BatchLoader,
    Loaded,
    LoaderOptions,
    ReadSeconds,
)
from stoker.data.loading.order import Order, lanes_for
from stoker.host.limits import usable_cores, usable_memory
from stoker.host.page_cache import bytes_from_storage, cached_share, is_cold
from stoker.recipe.schedule import Batch

Ints = NDArray[np.int64]

STAGES = ("synthetic", "decode", "read cold", "read warm", "loader cold", "loader warm")
IN_MEMORY = 256 << 20
"""Stored bytes kept in memory for the decode stage."""
SHARE = 0.25
"""Largest share of the memory that the shards of a pass may fill, so that a warm pass is warm."""
MOST_IMAGES = 5_000_000
"""Of a pass, before the shards are chosen by their bytes."""


@dataclass(frozen=True)
class Setting:
    image_size: int = 224
    batch_size: int = 256
    crop: str = "resized"
    threads: int = 0
    seconds: float = 10.0
    crop_scale: float = 0.08
    """The smallest area of a resized crop, as a share. Smaller crops decode faster."""
    augmentation: Augmentation = NONE


@dataclass(frozen=True)
class Pass:
    """The measurement of one stage."""

    images: int
    bytes: int
    """Stored bytes of these images; 0 where none were read."""
    seconds: float
    cpu_s: float
    held: float | None = None
    """The share of the shards in the page cache when it began; None where that is unknown."""
    fetched: int | None = None
    """Bytes that storage delivered, including those that the kernel read ahead."""

    @property
    def images_per_s(self) -> float:
        return self.images / max(self.seconds, 1e-9)

    @property
    def images_per_cpu_s(self) -> float:
        return self.images / max(self.cpu_s, 1e-9)

    @property
    def mb_per_s(self) -> float | None:
        return self.bytes / max(self.seconds, 1e-9) / 1e6 if self.bytes else None

    @property
    def is_cold(self) -> bool:
        return is_cold(self.held)


@dataclass(frozen=True)
class LoadingSpeed:
    """The measurements of all stages, and the set and machine they were made on."""

    setting: Setting
    threads: int
    codec: str
    images: int
    bytes: int
    """Of the whole split."""
    memory: int
    """Bytes that this process may use."""
    shards: int
    """Shards that were used."""
    of_shards: int
    passes: dict[str, Pass] = field(default_factory=dict)
    plain: Pass | None = None
    """Decoding without the compiled extra; None where the extra is not in use."""

    @property
    def extra_gain(self) -> float | None:
        """Images a CPU second with the compiled extra, as a multiple of those without it."""
        if self.plain is None:
            return None
        return self.passes["decode"].images_per_cpu_s / max(self.plain.images_per_cpu_s, 1e-9)

    @property
    def was_cold(self) -> bool:
        return self.passes["read cold"].is_cold and self.passes["loader cold"].is_cold

    @property
    def bound_by(self) -> dict[str, str]:
        """The slower of reading and decoding, cold and warm: it limits the loader."""
        decode = self.passes["decode"].images_per_s
        return {
            state: "decoding" if decode <= self.passes[f"read {state}"].images_per_s else "reading"
            for state in ("cold", "warm")
        }

    @property
    def first_epoch(self) -> float:
        """The duration of an epoch from the disk, as a multiple of one from the page cache."""
        cold, warm = self.passes["loader cold"], self.passes["loader warm"]
        return warm.images_per_s / max(cold.images_per_s, 1e-9)


@dataclass(frozen=True)
class SubsetOrder:
    """The order of training over some samples of a split."""

    order: Order
    samples: Ints

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]:
        numbers, epochs = self.order.part(position, size, begin, end)
        return self.samples[numbers], epochs

    def look_ahead(self, position: int, size: int, begin: int, end: int) -> None:
        self.order.look_ahead(position, size, begin, end)


class Stopwatch:
    """Wall time, CPU time and bytes from storage since a stage began."""

    def __init__(self, seconds: float) -> None:
        self._storage_bytes = bytes_from_storage()
        self._cpu_s, self._began = time.process_time(), time.perf_counter()
        self.until = self._began + seconds

    def stop(self, images: int, stored_bytes: int, cached: float | None) -> Pass:
        wall_s, cpu_s = time.perf_counter() - self._began, time.process_time() - self._cpu_s
        before, now = self._storage_bytes, bytes_from_storage()
        fetched = None if now is None or before is None else now - before
        return Pass(images, stored_bytes, wall_s, cpu_s, cached, fetched)


class Bench:
    """Measures the stages of loading one split."""

    def __init__(self, split: SplitIndex, fingerprint: str, setting: Setting) -> None:
        self.split, self.setting = split, setting
        self.threads = setting.threads or usable_cores()
        self.view = View(
            crop=setting.crop,
            crop_scale=setting.crop_scale,
            hflip=True,
            augmentation=setting.augmentation,
        )
        self._fingerprint = fingerprint
        self._use_shards(self._first_shards())

    def _first_shards(self) -> Ints:
        """All shards, or as many of the order of training as have MOST_IMAGES images."""
        sizes = self.split.shard_sizes
        if int(sizes.sum()) <= MOST_IMAGES:
            return np.arange(len(sizes))
        shards = Order(sizes, self._fingerprint, seed=0).plan(0).shards
        return shards[: max(int(np.searchsorted(np.cumsum(sizes[shards]), MOST_IMAGES)), 1)]

    def _use_shards(self, shards: Ints) -> None:
        """Measure with these shards, in an order of training."""
        split = self.split
        firsts = np.concatenate(([0], np.cumsum(split.shard_sizes)))
        samples = np.concatenate([np.arange(firsts[s], firsts[s + 1]) for s in shards])
        self.shards: list[int] = shards.tolist()
        self.batch = min(self.setting.batch_size, len(samples))
        lanes = lanes_for(len(samples), [self.batch])
        order = Order(split.shard_sizes[shards], self._fingerprint, seed=0, lanes=lanes)
        self.order, self.count = SubsetOrder(order, samples), len(samples)
        # In the order in which a loader reads them.
        batches = self.plan(self.count, float("inf"))
        parts = [self.order.part(batch.position, batch.size, 0, batch.size)[0] for batch in batches]
        self.samples = np.concatenate(parts)

    def choose_shards(self, memory: int) -> None:
        """Use as many shards as time and memory allow, judged by reading one from the disk."""
        shards = Order(self.split.shard_sizes, self._fingerprint, seed=0).plan(0).shards
        self._use_shards(shards[:1])
        probe = self.read(self.count, cold=True)
        bytes_per_s = probe.bytes / max(probe.seconds, 1e-9)
        most_bytes = min(bytes_per_s * self.setting.seconds, SHARE * memory)
        totals = accumulate(int(self.split.shards[shard]["bytes"]) for shard in shards.tolist())
        self._use_shards(shards[: max(sum(total <= most_bytes for total in totals), 1)])

    def plan(self, images: int, until: float) -> Iterator[Batch]:
        """Batches of the first images; after `until` no further batch begins."""
        for step, position in enumerate(range(0, images, self.batch)):
            if step and time.perf_counter() >= until:
                return
            yield Batch(step, position, min(self.batch, images - position), self.setting.image_size)

    def load(
        self, images: int, cold: bool | None = None, options: LoaderOptions = DEFAULTS
    ) -> Pass:
        """The first images through a loader. `cold`: drop the shards first, and compare hashes as
        the first epoch does; None: no shards are read."""
        options = replace(options, check_hashes=bool(cold))
        loader = BatchLoader(
            self.split, self.order, self.view, threads=self.threads, options=options
        )
        if cold:
            self.split.source.forget(self.shards)
        cached = None if cold is None else self._cached_share()
        watch = Stopwatch(self.setting.seconds)
        batches = loader.batches(self.plan(images, watch.until))
        samples = np.concatenate([loaded.samples.copy() for loaded in batches])
        loader.close()
        stored_bytes = 0 if options.fill else int(self.split.length[samples].sum())
        return watch.stop(len(samples), stored_bytes, cached)

    def read(self, images: int, cold: bool) -> Pass:
        """The stored bytes of the first images, by as many threads as decode."""
        samples = self.samples[:images]
        if cold:
            self.split.source.forget(self.shards)
        cached = self._cached_share()
        watch = Stopwatch(self.setting.seconds)
        largest = self.split.largest[0]

        def read_chunk(start: int) -> tuple[int, int]:
            if start and time.perf_counter() >= watch.until:
                return 0, 0
            chunk, buffer = samples[start : start + CHUNK].tolist(), bytearray(largest)
            return len(chunk), sum(len(self.split.bytes_of(sample, buffer)) for sample in chunk)

        with ThreadPoolExecutor(self.threads) as pool:
            counts = list(pool.map(read_chunk, range(0, images, CHUNK)))
        images_read, bytes_read = (sum(column) for column in zip(*counts, strict=True))
        return watch.stop(images_read, bytes_read, cached)

    def _cached_share(self) -> float | None:
        """The share of the shards in use that is in the page cache; None where that is unknown."""
        files = self.split.source.files(self.shards)
        return cached_share(files) if files else 0.0

    def synthetic(self) -> Pass:
        """A loader that copies one image instead of reading and decoding."""
        size = self.setting.image_size
        image = np.full((1, size, size, 3), 127, dtype=np.uint8)

        def copy(loaded: Loaded, crops: Boxes | None, start: int, stop: int) -> ReadSeconds:
            np.copyto(loaded.images[start:stop], image)
            return 0.0, 0.0

        return self.load(self.count, options=LoaderOptions(fill=copy))

    def decode(self, compiled: bool = True) -> Pass:
        """A loader that takes stored bytes from memory: as many whole batches as fit there."""
        totals = np.cumsum(self.split.length[self.samples].astype(np.int64))
        images = max(int((totals <= IN_MEMORY).sum()), 1)
        if images < self.count:
            images = max(images // self.batch, 1) * self.batch
        stored = {s: bytes(self.split.bytes_of(s)) for s in self.samples[:images].tolist()}

        def read(sample: int, buffer: bytearray) -> memoryview:
            return memoryview(stored[sample])

        return self.load(images, options=LoaderOptions(read=read, compiled=compiled))


def measure_loading(
    dataset: Dataset,
    setting: Setting,
    on_stage: Callable[[str, Pass], None] = lambda name, stage: None,
) -> LoadingSpeed:
    """Measure all stages on the training images; `on_stage` is called after each."""
    split = dataset.split("train")
    memory = usable_memory()
    bench = Bench(split, dataset.fingerprint, setting)
    bench.choose_shards(memory)
    passes: dict[str, Pass] = {}
    stages: tuple[Callable[[], Pass], ...] = (
        bench.synthetic,
        bench.decode,
        lambda: bench.read(bench.count, cold=True),
        lambda: bench.read(passes["read cold"].images, cold=False),
        lambda: bench.load(bench.count, cold=True),
        lambda: bench.load(passes["loader cold"].images, cold=False),
    )
    for name, measure in zip(STAGES, stages, strict=True):
        passes[name] = measure()
        on_stage(name, passes[name])
    return LoadingSpeed(
        setting,
        bench.threads,
        dataset.codec,
        len(split),
        sum(int(shard["bytes"]) for shard in split.shards),
        memory,
        len(bench.shards),
        len(split.shards),
        passes,
        bench.decode(compiled=False) if chunk_call.extra is not None else None,
    )


def as_data(speed: LoadingSpeed) -> dict[str, Any]:
    nested = ("setting", "passes", "plain")
    facts = {key: fact for key, fact in vars(speed).items() if key not in nested}
    rates = ("images_per_s", "images_per_cpu_s", "mb_per_s")
    stages = {
        name: vars(stage) | {rate: getattr(stage, rate) for rate in rates}
        for name, stage in speed.passes.items()
    }
    verdict = {
        "was_cold": speed.was_cold,
        "bound_by": speed.bound_by,
        "first_epoch_times_as_long": speed.first_epoch if speed.was_cold else None,
        "extra_gain": speed.extra_gain,
    }
    setting = vars(speed.setting) | {"augmentation": vars(speed.setting.augmentation)}
    return facts | setting | {"threads": speed.threads} | verdict | {"stages": stages}
