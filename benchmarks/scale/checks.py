"""Real runs of the product here against what the simulator said before them.

1. One host reads two epochs of a set behind a web server on loopback, with a cache that holds more
   than the windows of its lanes and less than the set, and with one that holds less than these.
2. Two hosts, as two processes with a cache and a server each, read their parts of each batch. They
   share cores, and no cache: what one does has no part in what the other fetches.
3. A training run is killed at seeded times and resumed each time (kills.py).

Beside these, without a limit: the time to the first batch of a server that answers late.

Invariants: a prediction is printed before its run begins. What a host fetched comes from the log of
the server.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import simplejpeg
from benchmarks.scale import kills
from benchmarks.scale.fetches import Alone, Fetched, Reader, ShardCache
from benchmarks.scale.first_batch import Link, first_images, images_s
from benchmarks.scale.served import SetServer, served
from benchmarks.scale.world import World

from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack

MOST = 0.15
IMAGES, SHARD_IMAGES, BATCH, EPOCHS = 24_070, 150, 60, 2
SHARES = {"60 % of the set": 0.6, "20 % of the set": 0.2}
LATENCY_S = 0.1
TRIES = 3
READER = Path(__file__).with_name("read_epochs.py")


@dataclass(frozen=True)
class Compared:
    """A prediction and what was measured."""

    name: str
    predicted: float
    measured: float
    counts: bool = True
    """Whether it must be within MOST."""

    @property
    def deviation(self) -> float:
        return self.predicted / self.measured - 1 if self.measured else float("inf")

    @property
    def holds(self) -> bool:
        return not self.counts or abs(self.deviation) <= MOST

    def row(self) -> str:
        limit = f"{MOST:.0%}" if self.counts else "none"
        numbers = f"{self.predicted:,.4g} | {self.measured:,.4g}"
        return f"| {self.name} | {numbers} | {100 * self.deviation:+.1f} % | {limit} |"


def small_set(root: Path) -> Path:
    """A packed set of tiny photographs."""
    draw = np.random.default_rng(0)
    for number in range(IMAGES):
        path = root / "photos" / f"class{number % 10}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(draw.integers(0, 256, (16, 16, 3), np.uint8)))
    folder = root / "web" / "set"
    return pack(root / "photos", folder, shard_images=SHARD_IMAGES, val_share=0, workers=2)


def reader(
    location: str, cache: Path, limit: int, host: int, hosts: int, batches: int = 0
) -> subprocess.Popen[str]:
    """A process that reads a set as one of some hosts."""
    variables = {**os.environ, "STOKER_CACHE": str(cache), "STOKER_CACHE_GB": f"{limit / 1e9:.9f}"}
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "LOCAL_WORLD_SIZE"):
        variables.pop(name, None)
    threads = 8 if batches else 1
    numbers = [str(number) for number in (host, hosts, BATCH, batches, threads)]
    command = [sys.executable, str(READER), location, *numbers]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)


def first_s(process: subprocess.Popen[str]) -> float:
    """The seconds to the first batch that a reader printed; it must end with 0."""
    printed, _ = process.communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"a reader ended with {process.returncode}")
    return float(json.loads(printed)["first_s"])


def predicted(
    world: World, packed: Path, limit: int, hosts: int, host: int
) -> tuple[Fetched, set[int]]:
    """What a host fetches in all epochs and ahead of the next, and which shards."""
    index = (packed / "train" / "index.parquet").stat().st_size
    cache = ShardCache(world.facts, limit, index)
    run = world.run(BATCH, hosts)
    epochs = [*Reader(run, host, cache, Alone.of(world, run, host)).epochs(EPOCHS)]
    total = Fetched()
    for one in (*epochs, cache.ahead):
        total = total.plus(one)
    return total, cache.ever


def tell(name: str, fetched: Fetched) -> None:
    print(
        f"predicted for {name}: {fetched.shards:.0f} shards of {fetched.shard_bytes / 1e6:.1f} MB, "
        f"{fetched.image_requests:.0f} requests for single images",
        flush=True,
    )


def compared(name: str, told: Fetched, server: SetServer, many_alone: bool) -> list[Compared]:
    """Requests and bytes of a host, by the log of its server."""
    shards, images = server.shards(), server.images()
    size = sum(one.bytes for one in shards)
    every = sum(one.bytes for one in (*shards, *images))
    return [
        Compared(f"{name}: shards fetched", told.shards, len(shards)),
        Compared(f"{name}: their bytes", told.shard_bytes, size),
        Compared(f"{name}: requests for images", told.image_requests, len(images), many_alone),
        Compared(f"{name}: all bytes", told.bytes, every),
    ]


def one_host(packed: Path, root: Path) -> Iterator[Compared]:
    world = World.of_set(Dataset(packed), seed=0)
    for name, share in SHARES.items():
        limit = int(share * world.bytes)
        title = f"one host, cache of {name}"
        told, _ = predicted(world, packed, limit, 1, 0)
        tell(title, told)
        with served(packed.parent) as server:
            first_s(reader(f"{server.endpoint}/set", root / f"one{share}", limit, 0, 1))
            yield from compared(title, told, server, many_alone=share < 0.5)


def two_hosts(packed: Path, root: Path) -> Iterator[Compared]:
    world = World.of_set(Dataset(packed), seed=0)
    limit = int(0.5 * world.bytes)
    expected = [predicted(world, packed, limit, 2, host) for host in (0, 1)]
    both = expected[0][1] & expected[1][1]
    for host in (0, 1):
        tell(f"host {host + 1} of 2", expected[host][0])
    print(f"predicted: {len(both)} shards are fetched by both", flush=True)
    with ExitStack() as stack:
        servers = [stack.enter_context(served(packed.parent)) for _ in (0, 1)]
        started = [
            reader(f"{server.endpoint}/set", root / f"two{host}", limit, host, 2)
            for host, server in enumerate(servers)
        ]
        for process in started:
            first_s(process)
        for host, server in enumerate(servers):
            yield from compared(f"host {host + 1} of 2", expected[host][0], server, False)
        first, second = ({one.path for one in server.shards()} for server in servers)
        yield Compared("two hosts: shards that both fetched", len(both), len(first & second))


def first_batch(packed: Path, root: Path) -> Compared:
    """A late server against the same without latency, the shortest of some tries each."""
    world = World.of_set(Dataset(packed), seed=0)
    run, limit = world.run(BATCH, 1), 2 * world.bytes
    seconds = []
    for latency_s in (0.0, LATENCY_S):
        tries = []
        for number in range(TRIES):
            cache = root / f"first{latency_s}-{number}"
            with served(packed.parent, latency_s) as server:
                tries.append(first_s(reader(f"{server.endpoint}/set", cache, limit, 0, 1, 1)))
        seconds.append(min(tries))
        if not latency_s:
            link = Link(LATENCY_S, float("inf"))
            images = images_s(first_images(world, run, 0, limit), world.image_bytes, link)
            told = seconds[0] + 3 * LATENCY_S + images
            print(f"predicted: first batch after {told:.2f} s", flush=True)
    name = f"first batch, {1000 * LATENCY_S:.0f} ms an answer, s"
    return Compared(name, told, seconds[1], counts=False)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="of the times of the kills")
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--only", choices=("one", "two", "first", "kills"))


def run(flags: argparse.Namespace) -> int:
    rows: list[Compared] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        packed = small_set(root)
        if flags.only in (None, "one"):
            rows += one_host(packed, root)
        if flags.only in (None, "two"):
            rows += two_hosts(packed, root)
        if flags.only in (None, "first"):
            rows.append(first_batch(packed, root))
        if flags.only in (None, "kills"):
            told, measured = kills.check(packed, root / "run", flags.kills, flags.seed)
            rows.append(Compared("killed run: redone work, of what counts", told, measured))
    print("\n| figure | predicted | measured | off by | limit |\n|---|---|---|---|---|")
    print("\n".join(row.row() for row in rows))
    return 0 if all(row.holds for row in rows) else 1
