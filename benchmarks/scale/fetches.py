"""What one host fetches: its real sequence of shards through a model of the product's cache.

The order says which shards come next (`Order.upcoming`), and `stored_shards.within` chooses those
that are held, as in the product. `ShardCache` does with them what StoredShards and FileCache do,
without files: release what is not wanted, take what is in the cache, fetch the rest, evict what was
released longest ago and never what is held. tests/unit/test_scale_up.py compares it with the two.

Invariants: a host that follows batch after batch changes its list of wanted shards only where its
lanes enter a new window, so the model goes from window to window. A fetch takes no time. While a
shard is neither held nor in the cache, its images are read alone: those of a batch that was begun
before its window became the present one, those of the first batches of a run, and all where the
share of the cache is too small for the windows.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
from benchmarks.scale.world import Ints, Run, World
from numpy.typing import NDArray

from stoker.data.index.read import Facts
from stoker.data.loading.loader import CHUNK
from stoker.data.loading.order import Order
from stoker.data.stored_set import TRAIN_SHARE
from stoker.data.stored_shards import within
from stoker.stores.client import spans

PREFETCH = 3
"""Batches that a loader makes ahead, as the recipe has it."""
SOME_BATCHES = 40
"""From which the requests for single images are estimated."""


@dataclass
class Fetched:
    """Requests and bytes of one host for the images of an epoch; some come before it begins."""

    shards: float = 0
    shard_bytes: float = 0
    found: float = 0
    """Shards that were in the cache."""
    images: float = 0
    """Images that were read alone."""
    image_requests: float = 0
    """For these; near images of a shard come by one."""
    image_bytes: float = 0
    late_bytes: float = 0
    """Of shards that were fetched when their window had begun: training waits for these."""

    @property
    def requests(self) -> float:
        return self.shards + self.image_requests

    @property
    def bytes(self) -> float:
        return self.shard_bytes + self.image_bytes

    def plus(self, other: Fetched) -> Fetched:
        return Fetched(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def times(self, factor: float) -> Fetched:
        return Fetched(*(getattr(self, field.name) * factor for field in fields(self)))


def mean_of(several: Sequence[Fetched]) -> Fetched:
    """The mean of the counts of some hosts."""
    names = [field.name for field in fields(Fetched)]
    return Fetched(*(sum(getattr(one, n) for one in several) / len(several) for n in names))


class ShardCache:
    """The shards in the cache of one host, and those of them that are held."""

    def __init__(self, facts: list[Facts], limit_bytes: int, other_bytes: int = 0) -> None:
        self.facts, self.limit_bytes = facts, limit_bytes
        self.share_bytes = int(TRAIN_SHARE * limit_bytes)
        self.counts = Fetched()
        self.held: OrderedDict[int, None] = OrderedDict()
        self._released: OrderedDict[int, None] = OrderedDict()
        """Shards that are in the cache and not held, the one that was released first in front."""
        self._bytes = other_bytes
        """Of all files of the cache; the index is one, and is held."""
        self.ever: set[int] = set()
        """All shards that were fetched."""
        self._unused: dict[int, int] = {}
        """Shards that were not used since they were held, and how often each was fetched."""

    def __contains__(self, number: int) -> bool:
        return number in self.held or number in self._released

    def bytes_of(self, numbers: Iterable[int]) -> int:
        return sum(int(self.facts[number]["bytes"]) for number in numbers)

    def follow(self, wanted: list[int]) -> list[int]:
        """Release what is not wanted, and have what is, as far as there is room. Returns what was
        fetched."""
        near, fetched = set(wanted), []
        for number in [number for number in self.held if number not in near]:
            del self.held[number]
            self._released[number] = None
        for number in wanted:
            if number in self.held:
                continue
            if number in self._released:
                del self._released[number]
                self._unused.setdefault(number, 0)
            elif self._fetch(int(self.facts[number]["bytes"])):
                self._unused[number] = self._unused.get(number, 0) + 1
                fetched.append(number)
            else:
                continue
            self.held[number] = None
        self.ever.update(fetched)
        return fetched

    def _fetch(self, size: int) -> bool:
        """Make room for a shard; False where everything else is held."""
        while self._bytes + size > self.limit_bytes and self._released:
            number, _ = self._released.popitem(last=False)
            self._bytes -= int(self.facts[number]["bytes"])
        if self._bytes + size > self.limit_bytes:
            return False
        self._bytes += size
        return True

    def use(self, number: int) -> bool:
        """Whether images of a shard come from the cache. That is a use of it, and its fetches
        count from then on."""
        if number in self._released:
            self._released.move_to_end(number)
        elif number not in self.held:
            return False
        if (fetches := self._unused.pop(number, None)) is not None:
            self._count(self.counts, number, fetches)
        return True

    def _count(self, counts: Fetched, number: int, fetches: int) -> None:
        counts.shards += fetches
        counts.shard_bytes += fetches * int(self.facts[number]["bytes"])
        counts.found += fetches == 0

    @property
    def ahead(self) -> Fetched:
        """What was fetched and not used yet."""
        counts = Fetched()
        for number, fetches in self._unused.items():
            self._count(counts, number, fetches)
        return counts


@dataclass(frozen=True)
class Alone:
    """Requests and bytes for an image that is read alone."""

    requests: float
    bytes: float

    @classmethod
    def of(cls, world: World, run: Run, host: int) -> Alone:
        """From some batches of the run, cut into tasks and ranges as the product does."""
        requests, size, images = 0, 0, 0
        for number in range(SOME_BATCHES):
            position = number * max(run.order.samples // SOME_BATCHES, run.batch)
            samples, _ = run.order.part(position, run.batch, *run.part_of(host))
            for start in range(0, len(samples), CHUNK):
                by_shard = dict[int, list[tuple[int, int]]]()
                for shard, *part in world.places(samples[start : start + CHUNK]):
                    by_shard.setdefault(shard, []).append((part[0], part[1]))
                wide = [span for ranges in by_shard.values() for span in spans(ranges)]
                requests += len(wide)
                size += sum(end - begin for begin, end in wide)
            images += len(samples)
        return cls(requests / images, size / images)


class Reader:
    """A host that trains through its cache."""

    def __init__(
        self, run: Run, host: int, cache: ShardCache, alone: Alone, start_images: float = 0
    ) -> None:
        """`start_images`: those that it needs before the first wanted shards are here."""
        self.run, self.order, self.cache, self.alone = run, run.order, cache, alone
        self.shares = run.shares(host)
        begin, end = run.part_of(host)
        early = max(start_images, PREFETCH * (end - begin)), (PREFETCH - 1) * (end - begin)
        self._start = Fetched()
        self._early = [images / sum(self.shares.values()) for images in early]
        """Images of each whole lane that are read before the window is followed: the first one of
        a run, and any other."""

    def epochs(self, count: int, most_windows: int = 0) -> Iterator[Fetched]:
        """The counts of each epoch. With `most_windows` only the first windows of an epoch are
        followed, and its counts are those, scaled to all images of the epoch; what is read alone at
        the start of the run comes once."""
        for epoch in range(count):
            self.cache.counts = Fetched()
            total = windows_in(self.order)
            windows = min(total, most_windows or total)
            for window in range(windows):
                self._enter(epoch, window)
            done = min(windows * self.order.window * self.order.lanes, self.order.samples)
            start, self._start = self._start, Fetched()
            yield self.cache.counts.times(self.order.samples / done).plus(start)

    def _enter(self, epoch: int, window: int) -> None:
        """Follow the first batch of a window, and read all of it."""
        order, batch = self.order, self.run.batch
        steps = -(-window * order.window * order.lanes // batch)
        position = epoch * order.samples + steps * batch
        due = [(share, *needs(order, epoch, lane, window)) for lane, share in self.shares.items()]
        is_start = epoch == window == 0
        early = self._early[0 if is_start else 1]
        for share, numbers, counts in due:
            self._read(numbers, counts * (share * min(early / counts.sum(), 1.0)))
        if is_start:
            self._start, self.cache.counts = self.cache.counts, Fetched()
        if position < (epoch + 1) * order.samples:
            upcoming = order.upcoming(position, sorted(self.shares))
            wanted = within(upcoming, self.cache.facts, self.cache.share_bytes)
            fetched = self.cache.follow(wanted)
            if not is_start:
                late = set(fetched) & {number for _, numbers, _ in due for number in numbers}
                self.cache.counts.late_bytes += self.cache.bytes_of(late)
        for share, numbers, counts in due:
            self._read(numbers, counts * (share * max(1 - early / counts.sum(), 0.0)))

    def _read(self, numbers: list[int], counts: NDArray[np.float64]) -> None:
        """Count the images that are read alone, of so many in each of some shards."""
        for number, images in zip(numbers, counts.tolist(), strict=False):
            if not self.cache.use(number):
                self.cache.counts.images += images
                self.cache.counts.image_requests += images * self.alone.requests
                self.cache.counts.image_bytes += images * self.alone.bytes


def windows_in(order: Order) -> int:
    """Windows of a lane in an epoch."""
    return math.ceil(math.ceil(order.samples / order.lanes) / order.window)


def needs(order: Order, epoch: int, lane: int, window: int) -> tuple[list[int], Ints]:
    """The shards of a window of a lane, and how many of its images are in each."""
    plan = order.plan(epoch)
    begin = int(plan.lane_starts[lane]) + window * order.window
    end = min(begin + order.window, int(plan.lane_starts[lane + 1]))
    if begin >= end:
        return [], np.ones(1, np.int64)  # a lane that is one sample shorter than others
    first, last = np.searchsorted(plan.starts, (begin, end - 1), side="right") - 1
    edges = np.clip(plan.starts[first : last + 2], begin, end)
    return plan.shards[first : last + 1].tolist(), np.diff(edges)
