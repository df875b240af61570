"""A set of any size as `stoker pack` would cut it, and the part of it that one host reads.

Invariants: nothing is stored but two arrays with a number for each shard, whatever the number of
images. The order, the lanes and the parts of a batch are the product's own objects.
"""

from __future__ import annotations

import tarfile
from dataclasses import dataclass
from functools import cache, cached_property
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from stoker.data.dataset import Dataset
from stoker.data.index.read import Facts
from stoker.data.loading.order import Order, lanes_for
from stoker.data.packing.options import PackOptions
from stoker.data.packing.tar_writer import TarWriter
from stoker.recipe.schedule import cuts

Ints = NDArray[np.int64]

PACKED_IMAGES = PackOptions().shard_images
"""Images in a shard, unless `stoker pack` is told otherwise."""


class ByteCount:
    """A file that keeps nothing but the number of bytes written to it."""

    def __init__(self) -> None:
        self.bytes = 0

    def write(self, data: bytes) -> None:
        self.bytes += len(data)


@cache
def tar_bytes(images: int, image_bytes: int) -> int:
    """The bytes of a shard, by the writer of the product."""
    count = ByteCount()
    tar, data = TarWriter(cast(IO[bytes], count)), bytes(image_bytes)
    for number in range(images):
        tar.add(f"{number:09d}.jpg", data)
        tar.add(f"{number:09d}.cls", b"999")
    tar.close()
    return count.bytes


@dataclass(frozen=True)
class World:
    """The shards of a training split."""

    sizes: Ints
    """Images of each shard."""
    facts: list[Facts]
    """Bytes of each shard, as its description has them. Equal shards share one entry."""
    fingerprint: str
    seed: int
    image_bytes: int
    rows: tuple[Ints, Ints] | None = None
    """Offset and length of each image in its shard; None where all images are equal."""

    @classmethod
    def of(cls, images: int, image_bytes: int, shard_images: int, seed: int) -> World:
        """A set of equal images: full shards, and one with the rest."""
        full, rest = divmod(images, shard_images)
        sizes = np.full(full + (rest > 0), shard_images, dtype=np.int64)
        facts: list[Facts] = []
        if full:
            facts += [{"bytes": tar_bytes(shard_images, image_bytes)}] * full
        if rest:
            sizes[-1] = rest
            facts.append({"bytes": tar_bytes(rest, image_bytes)})
        return cls(sizes, facts, f"{images} images", seed, image_bytes)

    @classmethod
    def of_set(cls, dataset: Dataset, seed: int) -> World:
        """A real set."""
        split = dataset.split("train")
        sizes, facts = split.shard_sizes, [{"bytes": shard["bytes"]} for shard in split.shards]
        rows = np.asarray(split.offset).astype(np.int64), np.asarray(split.length).astype(np.int64)
        return cls(sizes, facts, dataset.fingerprint, seed, round(float(rows[1].mean())), rows)

    @property
    def images(self) -> int:
        return int(self.sizes.sum())

    @property
    def shards(self) -> int:
        return len(self.sizes)

    @cached_property
    def bytes(self) -> int:
        return sum(int(shard["bytes"]) for shard in self.facts)

    @cached_property
    def _first_of_shard(self) -> Ints:
        return np.concatenate(([0], np.cumsum(self.sizes)))

    def places(self, samples: Ints) -> list[tuple[int, int, int]]:
        """Shard, offset and length of some images."""
        shards = np.searchsorted(self._first_of_shard, samples, side="right") - 1
        if self.rows is not None:
            offsets, lengths = (column[samples] for column in self.rows)
        else:
            each = -(-self.image_bytes // tarfile.BLOCKSIZE) + 3  # two headers, and a label
            offsets = (samples - self._first_of_shard[shards]) * (each * tarfile.BLOCKSIZE)
            lengths = np.full(len(samples), self.image_bytes)
        return [*zip(shards.tolist(), offsets.tolist(), lengths.tolist(), strict=True)]

    def run(self, batch: int, hosts: int) -> Run:
        """A run on so many hosts, with the number of lanes that the product gives it."""
        lanes = lanes_for(self.images, [batch], machines=hosts)
        return Run(Order(self.sizes, self.fingerprint, self.seed, lanes), batch, hosts)


@dataclass(frozen=True)
class Run:
    """A run on some hosts with one rank each."""

    order: Order
    batch: int
    """Images of all hosts together."""
    hosts: int

    @cached_property
    def _dealt(self) -> Ints:
        """The lane of each place of a batch. It is the same for every batch."""
        return self.order.arranged(0, self.batch) % self.order.lanes

    def part_of(self, host: int) -> tuple[int, int]:
        """Where a host's part of a batch begins and ends."""
        edges = cuts(self.batch, self.hosts)
        return edges[host], edges[host + 1]

    def shares(self, host: int) -> dict[int, float]:
        """The lanes that a host reads, and its share of each."""
        begin, end = self.part_of(host)
        numbers, counts = np.unique(self._dealt[begin:end], return_counts=True)
        each = self.batch / self.order.lanes
        return dict(zip(numbers.tolist(), (counts / each).tolist(), strict=True))

    def shards_of(self, host: int, epoch: int) -> Ints:
        """The shards that a host needs in an epoch, each once."""
        plan = self.order.plan(epoch)
        runs = []
        for lane in self.shares(host):
            begin, end = plan.lane_starts[lane], plan.lane_starts[lane + 1]
            first, last = np.searchsorted(plan.starts, (begin, end - 1), side="right") - 1
            runs.append(plan.shards[first : last + 1])
        return np.unique(np.concatenate(runs))

    def some_hosts(self, most: int) -> list[int]:
        """At most so many hosts, evenly spread from the first to the last."""
        places = np.linspace(0, self.hosts - 1, min(most, self.hosts)).tolist()
        return sorted({round(place) for place in places})

    def on_edges(self, epoch: int = 0) -> tuple[int, int]:
        """The shards that more than one host needs in an epoch, and the fetches that they add."""
        if self.hosts == 1:
            return 0, 0
        counts = np.zeros(len(self.order.shard_sizes), dtype=np.int32)
        for host in range(self.hosts):
            counts[self.shards_of(host, epoch)] += 1
        shared = counts[counts > 1]
        return len(shared), int((shared - 1).sum())
