"""How quickly a packed set can be fed to a network here, each stage by itself.

Invariants: every stage goes over the same images in the order and with the crops of training, on
the same threads, for at most `seconds` and at most once; all that was begun is counted. A cold pass
says how much of its shards was in memory all the same. A warm pass repeats the images of the cold
one. Of a large set only as many shards are used as the time and the memory allow.

    synthetic    batches copied from one in memory: order, crops, hand-over
    decode       stored bytes that are in memory already
    read         stored bytes, not decoded: cold (from the disk), then warm (from the page cache)
    loader       all of it: cold, then warm
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.loading.crops import Boxes, View
from stoker.data.loading.loader import CHUNK, Loaded, Loader
from stoker.data.loading.order import Order, lanes_for
from stoker.host.limits import usable_cores, usable_memory
from stoker.host.page_cache import bytes_from_storage, drop, held
from stoker.recipe.schedule import Batch

Ints = NDArray[np.int64]

STAGES = ("synthetic", "decode", "read cold", "read warm", "loader cold", "loader warm")
IN_MEMORY = 256 << 20
"""Stored bytes held for the decode stage."""
SHARE = 0.25
"""Of the machine's memory that the shards of a pass may fill, so that a warm pass is warm."""
COLD = 0.05
"""The share of shards that may be in memory before a pass that is called cold."""


@dataclass(frozen=True)
class Setting:
    """What is asked for."""

    image_size: int = 224
    batch_size: int = 256
    crop: str = "resized"
    threads: int = 0
    seconds: float = 10.0
    crop_scale: float = 0.08
    """The smallest area of a resized crop, as a share: smaller ones are quicker to decode."""


@dataclass(frozen=True)
class Pass:
    """One stage, measured."""

    images: int
    bytes: int
    """Stored bytes of these images; 0 where none were touched."""
    seconds: float
    cpu_s: float
    held: float | None = None
    """The share of the shards in memory when it began."""
    fetched: int | None = None
    """Bytes that came from storage meanwhile, with what the kernel reads ahead."""

    @property
    def images_per_s(self) -> float:
        return self.images / max(self.seconds, 1e-9)

    @property
    def images_per_cpu_s(self) -> float:
        return self.images / max(self.cpu_s, 1e-9)

    @property
    def mb_per_s(self) -> float:
        return self.bytes / max(self.seconds, 1e-9) / 1e6

    @property
    def is_cold(self) -> bool:
        return self.held is not None and self.held <= COLD


@dataclass(frozen=True)
class LoadingSpeed:
    """All stages, and what they were measured on."""

    setting: Setting
    threads: int
    codec: str
    images: int
    bytes: int
    """Of the whole split."""
    memory: int
    """That this process may use."""
    shards: int
    """That were used."""
    of_shards: int
    passes: dict[str, Pass] = field(default_factory=dict)

    @property
    def was_cold(self) -> bool:
        return self.passes["read cold"].is_cold and self.passes["loader cold"].is_cold

    @property
    def bound_by(self) -> dict[str, str]:
        """What the loader waits for, cold and warm: the slower of reading and decoding."""
        decode = self.passes["decode"].images_per_s
        return {
            state: "decoding" if decode <= self.passes[f"read {state}"].images_per_s else "reading"
            for state in ("cold", "warm")
        }

    @property
    def first_epoch(self) -> float:
        """How many times as long an epoch from the disk takes."""
        cold, warm = self.passes["loader cold"], self.passes["loader warm"]
        return warm.images_per_s / max(cold.images_per_s, 1e-9)

    @property
    def fits_memory(self) -> bool:
        return self.bytes < self.memory


@dataclass(frozen=True)
class Among:
    """The order of training over some shards of a split."""

    order: Order
    samples: Ints

    def part(self, position: int, size: int, begin: int, end: int) -> tuple[Ints, Ints]:
        numbers, epochs = self.order.part(position, size, begin, end)
        return self.samples[numbers], epochs

    def look_ahead(self, position: int, size: int) -> None:
        self.order.look_ahead(position, size)


class Held(SplitIndex):
    """A split of which some samples' bytes are in memory."""

    def __init__(self, split: SplitIndex, samples: Ints) -> None:
        vars(self).update(vars(split))
        self._held = {sample: bytes(split.bytes_of(sample)) for sample in samples.tolist()}

    def bytes_of(self, sample: int, into: bytearray | None = None) -> memoryview:
        return memoryview(self._held[sample])


class Copying(Loader):
    """A loader that neither reads nor decodes: it copies an image that is there."""

    ready: NDArray[np.uint8]

    def _fill(self, loaded: Loaded, seen: Boxes, start: int, stop: int) -> None:
        np.copyto(loaded.images[start:stop], self.ready)


class Bench:
    """Measures the stages of feeding one split."""

    def __init__(self, split: SplitIndex, fingerprint: str, setting: Setting) -> None:
        self.split, self.setting = split, setting
        self.threads = setting.threads or usable_cores()
        self.view = View(crop=setting.crop, crop_scale=setting.crop_scale, hflip=True)
        self._fingerprint = fingerprint
        self._take(np.arange(len(split.shard_sizes)))

    def _take(self, shards: Ints) -> None:
        """Go over these shards, in an order of training: the samples of one batch after the other,
        as a loader takes them."""
        split = self.split
        firsts = np.concatenate(([0], np.cumsum(split.shard_sizes)))
        samples = np.concatenate([np.arange(firsts[s], firsts[s + 1]) for s in shards])
        self.files: list[Path] = [split.folder / split.shards[s]["name"] for s in shards.tolist()]
        self.batch = min(self.setting.batch_size, len(samples))
        lanes = lanes_for(len(samples), [self.batch])
        order = Order(split.shard_sizes[shards], self._fingerprint, seed=0, lanes=lanes)
        self.order, self.count = Among(order, samples), len(samples)
        self.samples = np.concatenate(
            [
                self.order.part(batch.position, batch.size, 0, batch.size)[0]
                for batch in self.plan(self.count, float("inf"))
            ]
        )

    def choose(self, memory: int) -> None:
        """As many shards as the time allows, told from reading one of them from the disk."""
        sizes = [int(shard["bytes"]) for shard in self.split.shards]
        picked = Order(self.split.shard_sizes, self._fingerprint, seed=0).plan(0).shards
        self._take(picked[:1])
        probe = self.read(self.count, cold=True)
        rate = probe.bytes / max(probe.seconds, 1e-9)
        most = min(rate * self.setting.seconds, SHARE * memory)
        totals = accumulate(sizes[shard] for shard in picked.tolist())
        self._take(picked[: max(sum(total <= most for total in totals), 1)])

    def plan(self, images: int, until: float) -> Iterator[Batch]:
        """Batches of the first images; none are begun after some time."""
        for step, position in enumerate(range(0, images, self.batch)):
            if step and time.perf_counter() >= until:
                return
            size = min(self.batch, images - position)
            yield Batch(step, position, size, self.setting.image_size)

    def load(self, loader: Loader, images: int, cold: bool | None = None) -> Pass:
        """The first images through a loader."""
        if cold:
            drop(self.files)
        share = held(self.files) if cold is not None else None
        watch = Stopwatch(self.setting.seconds)
        seen = [done.samples.copy() for done in loader.batches(self.plan(images, watch.until))]
        loader.close()
        samples = np.concatenate(seen)
        touched = 0 if isinstance(loader, Copying) else int(self.split.length[samples].sum())
        return watch.over(len(samples), touched, share)

    def read(self, images: int, cold: bool) -> Pass:
        """The stored bytes of the first images, by as many threads as decode."""
        samples = self.samples[:images]
        if cold:
            drop(self.files)
        share = held(self.files)
        watch = Stopwatch(self.setting.seconds)
        largest = self.split.largest[0]

        def some(start: int) -> tuple[int, int]:
            if start and time.perf_counter() >= watch.until:
                return 0, 0
            chosen, room = samples[start : start + CHUNK].tolist(), bytearray(largest)
            return len(chosen), sum(len(self.split.bytes_of(sample, room)) for sample in chosen)

        with ThreadPoolExecutor(self.threads) as pool:
            done = list(pool.map(some, range(0, images, CHUNK)))
        return watch.over(sum(each[0] for each in done), sum(each[1] for each in done), share)

    def loader(self, split: SplitIndex, kind: type[Loader] = Loader) -> Loader:
        return kind(split, self.order, self.view, threads=self.threads)

    def synthetic(self) -> Pass:
        loader = self.loader(self.split, Copying)
        assert isinstance(loader, Copying)
        size = self.setting.image_size
        loader.ready = np.full((1, size, size, 3), 127, dtype=np.uint8)
        return self.load(loader, self.count)

    def decode(self) -> Pass:
        totals = np.cumsum(self.split.length[self.samples].astype(np.int64))
        images = max(int((totals <= IN_MEMORY).sum()), 1)
        if images < self.count:
            images = max(images // self.batch, 1) * self.batch
        return self.load(self.loader(Held(self.split, self.samples[:images])), images)


class Stopwatch:
    """Time, CPU time and bytes from storage since a stage began."""

    def __init__(self, seconds: float) -> None:
        self._fetched = bytes_from_storage()
        self._cpu_s, self._began = time.process_time(), time.perf_counter()
        self.until = self._began + seconds

    def over(self, images: int, touched: int, share: float | None) -> Pass:
        took, used = time.perf_counter() - self._began, time.process_time() - self._cpu_s
        now = bytes_from_storage()
        fetched = None if now is None or self._fetched is None else now - self._fetched
        return Pass(images, touched, took, used, share, fetched)


def measure_loading(
    dataset: Dataset, setting: Setting, tell: Callable[[str, Pass], None] = lambda name, row: None
) -> LoadingSpeed:
    """Measure all stages on the training images; `tell` hears of each as it is done."""
    split = dataset.split("train")
    memory = usable_memory()
    bench = Bench(split, dataset.fingerprint, setting)
    bench.choose(memory)
    passes: dict[str, Pass] = {}

    def note(name: str, row: Pass) -> None:
        passes[name] = row
        tell(name, row)

    note("synthetic", bench.synthetic())
    note("decode", bench.decode())
    note("read cold", bench.read(bench.count, cold=True))
    note("read warm", bench.read(passes["read cold"].images, cold=False))
    note("loader cold", bench.load(bench.loader(split), bench.count, cold=True))
    note("loader warm", bench.load(bench.loader(split), passes["loader cold"].images, cold=False))
    return LoadingSpeed(
        setting,
        bench.threads,
        dataset.codec,
        len(split),
        sum(int(shard["bytes"]) for shard in split.shards),
        memory,
        len(bench.files),
        len(split.shards),
        passes,
    )


def as_data(found: LoadingSpeed) -> dict[str, Any]:
    """What was measured as plain data."""
    facts = {
        name: value for name, value in vars(found).items() if name not in ("setting", "passes")
    }
    rows = {
        name: vars(row)
        | {
            "images_per_s": row.images_per_s,
            "images_per_cpu_s": row.images_per_cpu_s,
            "mb_per_s": row.mb_per_s if row.bytes else None,
        }
        for name, row in found.passes.items()
    }
    verdict = {
        "was_cold": found.was_cold,
        "bound_by": found.bound_by,
        "first_epoch_times_as_long": found.first_epoch if found.was_cold else None,
    }
    return facts | vars(found.setting) | {"threads": found.threads} | verdict | {"stages": rows}
