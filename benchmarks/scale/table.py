"""One row for each number of images and of hosts: index, memory, fetches, first batch and losses.

Invariants: every figure is a function of the flags and the seed. What is a mean of some hosts, or
scaled from a part of an epoch, says so in its row. Costs are there where prices were given.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.scale import first_batch, index
from benchmarks.scale.fetches import Alone, Fetched, Reader, ShardCache, mean_of, needs, windows_in
from benchmarks.scale.losses import Losses, simulate
from benchmarks.scale.world import PACKED_IMAGES, Run, World

from stoker.data.stored_set import TRAIN_SHARE
from stoker.text import plural

GB = 10**9
HOSTS_SAMPLED = 3
MOST_WINDOWS = 1500
"""Windows of an epoch that are followed; longer epochs are scaled from these."""
EPOCHS = 2


@dataclass(frozen=True)
class Terms:
    """The flags of a table."""

    image_bytes: int
    shard_images: int
    host_batch: int
    cache_bytes: int
    link: first_batch.Link
    images_per_s: float
    """That a host trains."""
    losses_per_host_day: float
    save_s: float
    restart_s: float
    seed: int
    egress_usd_gb: float | None
    get_usd_1000: float | None

    @classmethod
    def of(cls, flags: argparse.Namespace) -> Terms:
        image_bytes = int(flags.image_kb * 1000)
        images = PACKED_IMAGES
        if flags.shard_mb:
            images = max(round(flags.shard_mb * 1e6 / image_bytes), 1)
        return cls(
            image_bytes,
            images,
            flags.batch,
            int(flags.cache_gb * GB),
            first_batch.Link(flags.latency_ms / 1000, flags.link_gbit * 1e9 / 8),
            flags.images_per_s,
            flags.losses_per_host_day,
            flags.save_s,
            flags.restart_s,
            flags.seed,
            flags.egress_usd_gb,
            flags.get_usd_1000,
        )


@dataclass(frozen=True)
class Cell:
    """The figures of one number of images and hosts; those of a host are means of some hosts."""

    images: int
    hosts: int
    shards: int
    set_bytes: int
    lanes: int
    whole: index.IndexOfHost
    parted: index.IndexOfHost
    is_parted: bool
    """Which of the two packing writes."""
    order_bytes: int
    hosts_followed: int
    epoch_share: float
    """Of the windows of an epoch that were followed."""
    own_shards: float
    """That a host needs in an epoch."""
    first: Fetched
    later: Fetched
    """The first epoch, and the second."""
    wait_share: float
    """Of the first epoch, for shards that are fetched when their window has begun."""
    edge_shards: int
    edge_fetches: int
    whole_s: float
    parted_s: float
    """To the first batch, with an index in one file and in parts."""
    losses: Losses
    cold_bytes: float
    """That a replacement with an empty cache fetches more than the host that was lost."""
    usd: dict[str, float]
    """An epoch of all hosts, by what is paid for."""


def cell_of(images: int, hosts: int, terms: Terms, world: World) -> Cell:
    run = world.run(terms.host_batch * hosts, hosts)
    costs = index.measured_costs(terms.shard_images, terms.seed)
    some = run.some_hosts(HOSTS_SAMPLED)
    followed = [follow(world, run, host, terms) for host in some]
    first, later = (mean_of([one[n] for one in followed]) for n in range(EPOCHS))
    own = sum(len(run.shards_of(host, 0)) for host in some) / len(some)
    whole, parted = index.whole_index(world, costs), index.parted_index(world, round(own), costs)
    index_here = parted if index.is_parted(world) else whole
    late_s = first.late_bytes / terms.link.bytes_per_s
    share = int(TRAIN_SHARE * terms.cache_bytes)
    images_first = first_batch.first_images(world, run, some[0], share)
    images_s = first_batch.images_s(images_first, terms.image_bytes, terms.link)
    return Cell(
        images,
        hosts,
        world.shards,
        world.bytes,
        run.order.lanes,
        whole,
        parted,
        index.is_parted(world),
        index.order_memory(world, run, some[0]),
        len(some),
        min(MOST_WINDOWS / windows_in(run.order), 1.0),
        own,
        first,
        later,
        late_s / (late_s + images / hosts / terms.images_per_s),
        *run.on_edges(),
        first_batch.whole_s(world, costs, terms.link) + images_s,
        first_batch.parted_s(world, costs, images_first, terms.link) + images_s,
        simulate(hosts, terms.losses_per_host_day, terms.save_s, terms.restart_s, terms.seed),
        sum(one[-1].shard_bytes for one in followed) / len(some) + first.bytes - later.bytes,
        prices(first, index_here, hosts, terms),
    )


def follow(world: World, run: Run, host: int, terms: Terms) -> list[Fetched]:
    """The counts of a host in each epoch, and what it holds at the end of the first."""
    costs = index.measured_costs(terms.shard_images, terms.seed)
    index_bytes = 0 if index.is_parted(world) else round(world.images * costs.row)
    cache = ShardCache(world.facts, terms.cache_bytes, index_bytes)
    first = {number for lane in run.shares(host) for number in needs(run.order, 0, lane, 0)[0]}
    first_s = cache.bytes_of(first) / terms.link.bytes_per_s
    start_images = terms.images_per_s * first_s / 2  # on the average half of them are here
    reader = Reader(run, host, cache, Alone.of(world, run, host), start_images)
    counts, held = [], Fetched()
    for epoch in reader.epochs(EPOCHS, MOST_WINDOWS):
        counts.append(epoch)
        held = held if held.shard_bytes else Fetched(len(cache.held), cache.bytes_of(cache.held))
    return [*counts, held]


def prices(
    fetched: Fetched, index_here: index.IndexOfHost, hosts: int, terms: Terms
) -> dict[str, float]:
    """Dollars for the first epoch of all hosts, as far as prices were given."""
    usd = {}
    if terms.egress_usd_gb is not None:
        each = fetched.bytes + index_here.first_bytes + index_here.later_bytes
        usd["egress"] = hosts * each / GB * terms.egress_usd_gb
    if terms.get_usd_1000 is not None:
        each = fetched.requests + index_here.files
        usd["requests"] = hosts * each / 1000 * terms.get_usd_1000
    return usd


def cells_of(images: Sequence[int], hosts: Sequence[int], terms: Terms) -> list[Cell]:
    """All cells, those of one set after the other."""
    cells = []
    for size in images:
        world = World.of(size, terms.image_bytes, terms.shard_images, terms.seed)
        cells += [cell_of(size, number, terms, world) for number in hosts]
    return cells


def count(number: float) -> str:
    """A number in three figures: 5.8 B, 1.28 M, 40.1 k, 12.3."""
    for size, unit in ((1e9, " B"), (1e6, " M"), (1e4, " k")):
        if number >= size:
            return f"{number / (1000 if unit == ' k' else size):.3g}{unit}"
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:.3g}"


def size(number: float) -> str:
    """Bytes in three figures."""
    for power, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if number >= power:
            value = number / power
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{number / 1000:.3g} kB"


def time(seconds: float) -> str:
    for length, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def in_parts(cell: Cell, number: float) -> str:
    """Bytes of an index in parts, where packing writes one."""
    return size(number) if cell.is_parted else "-"


Columns = dict[str, Callable[[Cell], str]]

INDEX: Columns = {
    "shards": lambda cell: count(cell.shards),
    "the set": lambda cell: size(cell.set_bytes),
    "one index: read": lambda cell: size(cell.whole.first_bytes),
    "memory": lambda cell: size(cell.whole.memory),
    "in parts: read at first": lambda cell: in_parts(cell, cell.parted.first_bytes),
    "in an epoch": lambda cell: in_parts(cell, cell.parted.later_bytes),
    "memory ": lambda cell: in_parts(cell, cell.parted.memory),
    "order": lambda cell: size(cell.order_bytes),
}
FETCHES: Columns = {
    "lanes": lambda cell: str(cell.lanes),
    "its shards": lambda cell: count(cell.own_shards),
    "requests": lambda cell: count(cell.first.requests),
    "of these for single images": lambda cell: count(cell.first.image_requests),
    "bytes": lambda cell: size(cell.first.bytes),
    "late": lambda cell: percent(cell.first.late_bytes / cell.first.bytes),
    "training waits": lambda cell: percent(cell.wait_share),
    "bytes, second epoch": lambda cell: size(cell.later.bytes) if cell.later.bytes else "0",
    "shards that several hosts fetch": lambda cell: count(cell.edge_shards),
    "fetches of all hosts": lambda cell: f"{1 + cell.edge_fetches / cell.shards:.2f} x the set",
    "followed": lambda cell: f"{plural(cell.hosts_followed, 'host')}, {percent(cell.epoch_share)}",
}
FIRST: Columns = {
    "first batch": lambda cell: time(cell.parted_s if cell.is_parted else cell.whole_s),
    "with one index": lambda cell: time(cell.whole_s),
    "a loss every": lambda cell: time(3600 * cell.losses.hours_between),
    "saves every": lambda cell: time(cell.losses.interval_s),
    "saves": lambda cell: percent(cell.losses.saves),
    "redone": lambda cell: percent(cell.losses.redone),
    "restarts": lambda cell: percent(cell.losses.restarts),
    "all": lambda cell: percent(cell.losses.share),
    "formula": lambda cell: percent(cell.losses.formula),
    "an empty cache adds": lambda cell: size(cell.cold_bytes),
}


def markdown(cells: list[Cell], columns: Columns) -> str:
    """A table with a row for each cell."""
    names = ["images", "hosts", *(name.strip() for name in columns)]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for cell in cells:
        texts = [count(cell.images), f"{cell.hosts:,}", *(text(cell) for text in columns.values())]
        lines.append("| " + " | ".join(texts) + " |")
    return "\n".join(lines)


def costs(cells: list[Cell]) -> Columns:
    """The columns for what was priced."""
    return {f"{name}, USD": partial(usd_text, name) for name in cells[0].usd}


def usd_text(name: str, cell: Cell) -> str:
    return f"{cell.usd[name]:,.2f}"


def printed(cells: list[Cell]) -> str:
    """The tables as text."""
    tables = [
        ("Index and memory of a host", INDEX),
        ("Fetched by a host in an epoch, from an empty cache", FETCHES),
        ("First batch, and losses of machines", FIRST),
    ]
    if priced := costs(cells):
        tables.append(("The first epoch of all hosts, at the prices given", priced))
    return "\n\n".join(f"{title}\n\n{markdown(cells, columns)}" for title, columns in tables)


def plain(cells: list[Cell]) -> list[dict[str, Any]]:
    """The cells for a JSON file."""
    return [asdict(cell) for cell in cells]
