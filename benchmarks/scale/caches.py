"""The size of the cache against what is fetched again in later epochs.

Invariant: a cache is given as a share of the data that a host reads in an epoch: the set, divided
by the hosts. Later epochs deal other shards to a host, so a share of 100 % holds all of its data on
one host alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.scale.fetches import Alone, Fetched, Reader, ShardCache, mean_of
from benchmarks.scale.table import HOSTS_SAMPLED, Terms, count, size
from benchmarks.scale.world import World

SHARES = (0.02, 0.05, 0.10, 0.25, 0.50, 1.00, 1.20)
EPOCHS = 3


@dataclass(frozen=True)
class CacheRow:
    """A cache, and what a host fetches with it."""

    hosts: int
    share: float
    cache_bytes: int
    own_shards: float
    epochs: list[Fetched]


def rows_of(world: World, hosts: list[int], terms: Terms) -> list[CacheRow]:
    rows = []
    for number in hosts:
        run = world.run(terms.host_batch * number, number)
        some = run.some_hosts(HOSTS_SAMPLED)
        own = sum(len(run.shards_of(host, 0)) for host in some) / len(some)
        alone = {host: Alone.of(world, run, host) for host in some}
        for share in SHARES:
            limit = int(share * world.bytes / number)
            followed = []
            for host in some:
                cache = ShardCache(world.facts, limit)
                followed.append([*Reader(run, host, cache, alone[host]).epochs(EPOCHS)])
            epochs = [mean_of([one[epoch] for one in followed]) for epoch in range(EPOCHS)]
            rows.append(CacheRow(number, share, limit, own, epochs))
    return rows


def markdown(rows: list[CacheRow]) -> str:
    lines = [
        "| hosts | cache | of the host's data | fetches a shard, epoch 1 | epoch 2 | epoch 3 "
        "| images alone, epoch 1 | epoch 3 |",
        "|" + "---|" * 8,
    ]
    for row in rows:
        fetches = [f"{epoch.shards / row.own_shards:.2f}" for epoch in row.epochs]
        alone = [count(row.epochs[epoch].images) for epoch in (0, -1)]
        cells = [str(row.hosts), size(row.cache_bytes), f"{row.share:.0%}", *fetches, *alone]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
