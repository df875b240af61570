"""How well the product's order mixes a set, beside a perfect shuffle, a shuffle of shards alone and
a model of a shuffle buffer.

    python benchmarks/scale_up.py shuffle [--images 1281167,1e8,5.8e9] [--hosts 1,8,100,1000]
        [--classes 1000] [--shard-images 1000] [--batch 256] [--drawn 100000] [--json FILE]

Of a set of at most two million images every sample and every batch of an epoch counts; of a larger
one, positions are drawn. Two storages: `as packed` is what `stoker pack` does, which permutes the
images over all shards, and `class by class` is a set that was never shuffled, the worst case. All
classes are of the same size. Figures of a host are those of its part of each batch, which is what
its BatchNorm layers see at once.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.scale.shuffle_measures import (
    PERFECT_MEAN,
    PERFECT_QUANTILES,
    class_mix,
    expected_pairs,
    mean_mix,
    movement,
    place_in_epoch,
    same_shard_pairs,
)
from benchmarks.scale.shuffle_orders import EXACT, Buffered, Ints, Perfect, ShardsOnly

from stoker import chance
from stoker.data.loading.order import WINDOW, Order, lanes_for
from stoker.data.sources.layout import shuffle as shuffle_to_pack
from stoker.recipe.schedule import cuts

STORAGES = ("as packed", "class by class")
BUFFERS = (1_000, 10_000)
ROW = 100
"""Batches in a row of which the classes are counted together."""
ROWS = 10
"""How many such rows are drawn."""
MOST_IN_A_ROW = 100_000
"""Images of such a row; of larger batches one alone has nearly all classes."""
FEWEST = 4
"""Batches that are drawn at least."""
HOSTS = 16
"""Hosts whose parts of a batch are looked at."""
MOVED = 3_000
"""Samples of a large set whose movement is measured."""
BATCHES = (32, 50, 64, 96, 100, 128, 192, 200, 250, 256, 384, 500, 512, 1000, 1024)
AnyOrder = Order | Perfect | ShardsOnly | Buffered


@dataclass(frozen=True)
class MixedSet:
    """A set, and the hosts that train on it."""

    images: int
    shard_images: int
    classes: int
    hosts: int
    host_batch: int
    drawn: int
    seed: int

    @cached_property
    def sizes(self) -> Ints:
        """Images of each shard, as the packer cuts them."""
        whole, rest = divmod(self.images, self.shard_images)
        return np.append(np.full(whole, self.shard_images, np.int64), [rest] * (rest > 0))

    @property
    def batch(self) -> int:
        return self.hosts * self.host_batch

    @property
    def is_exact(self) -> bool:
        return self.images <= EXACT

    @property
    def batches(self) -> int:
        """How many batches are looked at."""
        return max(self.drawn // self.batch, FEWEST)

    def order(self, lanes: int = 0) -> Order:
        """The product's, by default with the lanes that it has for this batch and these hosts."""
        lanes = lanes or lanes_for(self.images, [self.batch], machines=self.hosts)
        return Order(self.sizes, "benchmark", self.seed, lanes)

    def orders(self) -> Iterator[tuple[str, AnyOrder]]:
        """Each by its name, made when it is its turn: they are large."""
        yield "perfect shuffle", Perfect(self.images, self.seed)
        yield "stoker", self.order()
        if self.hosts == 1:
            yield "stoker, one lane", self.order(lanes=1)
        yield "shards only", ShardsOnly(self.order(lanes=self.hosts))
        for size in BUFFERS:
            reach = 0 if self.is_exact else self.batches * self.host_batch
            buffered = Buffered(self.sizes, size, self.seed, self.hosts, reach)
            if buffered.samples >= self.batch:  # else a host may have less than its share of one
                yield f"buffer of {size:,} (model)", buffered

    def starts(self, order: AnyOrder) -> list[int]:
        """Where the batches begin that are looked at."""
        begin, end = getattr(order, "region", (0, order.samples))
        count = (end - begin) // self.batch
        if self.is_exact or count <= self.batches:
            return [begin + number * self.batch for number in range(count)]
        rng = np.random.default_rng([self.seed, self.images, self.hosts])
        drawn = np.sort(rng.integers(0, count, self.batches))
        return [begin + number * self.batch for number in drawn.tolist()]

    def labels(self, storage: str) -> Callable[[Ints], Ints]:
        """The class of each sample of the set, by its place there."""
        if storage == "class by class":
            return lambda ids: ids * self.classes // self.images
        if not self.is_exact:
            # Drawn for each image: of so many, a permutation has no other distribution.
            modulus = np.uint64(self.classes)
            return lambda ids: (chance.hash_of("class", ids) % modulus).astype(np.int64)
        packed = packed_labels(self.images, self.classes)
        return lambda ids: packed[ids]


@cache
def packed_labels(images: int, classes: int) -> Ints:
    """The class at each place of a set that the packer shuffled."""
    edges = cuts(images, classes)
    members = {f"{c:06d}": [0] * (edges[c + 1] - edges[c]) for c in range(classes)}
    numbers = {name: number for number, name in enumerate(members)}
    return np.array(shuffle_to_pack(members, numbers).labels, dtype=np.int64)


def moved(mixed: MixedSet, order: AnyOrder) -> dict[str, Any]:
    """How far samples move from their place in the set, and from one epoch to the next."""
    samples = order.samples
    if mixed.is_exact:
        positions = np.arange(samples, dtype=np.int64)
        ids, later = order.samples_at(positions), order.samples_at(positions + samples)
        places, next_places = np.full((2, mixed.images), -1)
        places[ids], next_places[later] = positions, positions
        in_both = (places >= 0) & (next_places >= 0)  # a buffer of many hosts leaves some out
        again = movement(places[in_both], next_places[in_both], samples)
    else:
        assert isinstance(order, Order)
        rng = np.random.default_rng([mixed.seed, samples])
        positions = np.sort(rng.integers(0, samples, MOVED))
        ids = order.samples_at(positions)
        again = movement(positions, place_in_epoch(order, 1, ids), samples)
    from_set = movement(ids, positions, samples)
    return {"from_set": asdict(from_set), "from_epoch_to_epoch": asdict(again)}


def mixing(mixed: MixedSet, order: AnyOrder) -> dict[str, Any]:
    """Pairs of the same shard, and classes by storage, of batches and of hosts' parts of them."""
    edges, batches, parts = cuts(mixed.batch, mixed.hosts), [], []
    for start in mixed.starts(order):
        batches.append(order.part(start, mixed.batch, 0, mixed.batch)[0])
        hosts = np.unique(np.linspace(0, mixed.hosts - 1, HOSTS, dtype=np.int64)).tolist()
        parts += [batches[-1][edges[host] : edges[host + 1]] for host in hosts]
    return {
        "batches": len(batches),
        "same_shard": share_of_pairs(mixed, batches),
        "same_shard_host": share_of_pairs(mixed, parts),
        "same_shard_expected": expected_pairs(2, mixed.sizes),
        "batch_mix": {storage: mix_of(mixed, storage, batches) for storage in STORAGES},
        "host_mix": {storage: mix_of(mixed, storage, parts) for storage in STORAGES},
        "in_a_row": {storage: in_a_row(mixed, storage, order) for storage in STORAGES},
    }


def share_of_pairs(mixed: MixedSet, parts: list[Ints]) -> float:
    """The share of all pairs of samples in a part that are in the same shard."""
    pairs = sum(same_shard_pairs(ids, mixed.sizes) for ids in parts)
    return pairs / sum(len(ids) * (len(ids) - 1) / 2 for ids in parts)


def mix_of(mixed: MixedSet, storage: str, parts: list[Ints]) -> dict[str, float]:
    """The mean mix of the classes in the parts."""
    labels, shares = mixed.labels(storage), np.full(mixed.classes, 1 / mixed.classes)
    return asdict(mean_mix([class_mix(labels(ids), shares) for ids in parts]))


def in_a_row(mixed: MixedSet, storage: str, order: AnyOrder) -> float | None:
    """The classes in ROW batches in a row; None where so many batches are not looked at."""
    size = ROW * mixed.batch
    begin, end = getattr(order, "region", (0, order.samples))
    if size > min(MOST_IN_A_ROW, end - begin):
        return None
    rng, labels = np.random.default_rng([mixed.seed, ROW]), mixed.labels(storage)
    counts = []
    for _ in range(ROWS):
        start = int(rng.integers(begin, end - size + 1)) // mixed.hosts * mixed.hosts
        counts.append(len(np.unique(labels(order.part(start, size, 0, size)[0]))))
    return float(np.mean(counts))


def rows_of(mixed: MixedSet) -> Iterator[dict[str, Any]]:
    """One row for each order of a set."""
    for name, order in mixed.orders():
        facts = {"images": mixed.images, "hosts": mixed.hosts, "batch": mixed.batch}
        row = {**facts, "order": name, "lanes": getattr(order, "lanes", None)}
        if isinstance(order, Order) or (mixed.is_exact and mixed.hosts == 1):
            row |= moved(mixed, order)
        yield row | mixing(mixed, order)


def short(images: int) -> str:
    """20,000, 1.28 M, 100 M, 5.8 B."""
    if images < 1e6:
        return f"{images:,}"
    return f"{images / 1e9:.3g} B" if images >= 1e9 else f"{images / 1e6:.3g} M"


def percent(share: float) -> str:
    """Two digits, however small: 23 %, 0.27 %, 0.000017 %."""
    digits = max(1 - math.floor(math.log10(100 * share)), 0) if share else 0
    return f"{100 * share:.{digits}f} %"


def movement_table(rows: list[dict[str, Any]]) -> list[str]:
    low, middle, high = PERFECT_QUANTILES
    lines = [
        "| images | hosts | order | lanes | moved, mean | 10 %, 50 %, 90 % | correlation with the "
        "set | with the next epoch | pairs of a batch that share a shard | of a host's part | "
        "expected |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        f"| any | any | perfect shuffle, expected | | {PERFECT_MEAN:.3f} | {low:.3f}, "
        f"{middle:.3f}, {high:.3f} | 0 | 0 | | | |",
    ]
    for row in rows:
        if "from_set" not in row:
            continue
        far, again = row["from_set"], row["from_epoch_to_epoch"]
        quantiles = ", ".join(f"{value:.3f}" for value in far["quantiles"])
        lines.append(
            f"| {short(row['images'])} | {row['hosts']:,} | {row['order']} | {row['lanes'] or ''} "
            f"| {far['mean']:.3f} | {quantiles} | {far['correlation']:+.3f} | "
            f"{again['correlation']:+.3f} | {percent(row['same_shard'])} | "
            f"{percent(row['same_shard_host'])} | {percent(row['same_shard_expected'])} |"
        )
    return lines


def lanes_line(images: list[int]) -> str:
    """How many lanes one host has by its batch: a batch that 128 does not divide has fewer."""
    found = {size: lanes_for(images[0], [size]) for size in BATCHES}
    return "lanes by batch: " + ", ".join(f"{size}: {lanes}" for size, lanes in found.items())


def mix_cells(mix: dict[str, float]) -> str:
    return f"{mix['distinct']:,.0f} | {mix['distance']:.3f} | {mix['excess']:.2f}"


def class_table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| images | hosts | batch | storage | order | lanes | classes in a batch | distance | "
        f"excess | classes in {ROW} batches | classes in a host's part | distance | excess |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row, storage in product(rows, STORAGES):
        many = row["in_a_row"][storage]
        in_row = "" if many is None else f"{many:,.0f}"
        whole, part = (mix_cells(row[name][storage]) for name in ("batch_mix", "host_mix"))
        lines.append(
            f"| {short(row['images'])} | {row['hosts']:,} | {row['batch']:,} | {storage} | "
            f"{row['order']} | {row['lanes'] or ''} | {whole} | {in_row} | {part} |"
        )
    return lines


def numbers(text: str) -> list[int]:
    """1.28e6,100 -> [1280000, 100]"""
    return [round(float(word)) for word in text.split(",")]


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=numbers, default=[1_281_167, 10**8, 58 * 10**8])
    parser.add_argument("--hosts", type=numbers, default=[1, 8, 100, 1000])
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--shard-images", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=256, help="images of a batch for each host")
    parser.add_argument("--drawn", type=int, default=100_000, help="images of large sets, a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a file for all figures")


def run(arguments: argparse.Namespace) -> int:
    """Measure every set of the flags and print two tables."""
    rows: list[dict[str, Any]] = []
    for images, hosts in product(arguments.images, arguments.hosts):
        sizes = (arguments.shard_images, arguments.classes, hosts, arguments.batch)
        for row in rows_of(MixedSet(images, *sizes, arguments.drawn, arguments.seed)):
            rows.append(row)
            print(f"{short(images)}, {hosts} hosts: {row['order']}", file=sys.stderr)
    window = f"window {WINDOW:,}, shards of {arguments.shard_images:,}, {arguments.classes} classes"
    print(
        "\n".join(
            [
                window,
                lanes_line(arguments.images),
                "",
                *movement_table(rows),
                "",
                *class_table(rows),
            ]
        )
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    add_flags(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
