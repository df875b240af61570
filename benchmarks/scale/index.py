"""Bytes and memory of the index of a set for one host, from files that the product writes here.

A split has one index, of which each host reads and keeps all rows; or, with more than WHOLE_ROWS
images, a table with a row for each shard, and the rows of each shard in a file of their own, which
a host reads as the shard comes up. Of those at most KEPT_ROWS rows stay in memory.

Invariants: no size is a constant. Rows with the paths, hashes and numbers that a pack of
photographs has are written with the product's writers into a temporary folder, read back with its
readers, and their bytes counted.
"""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from benchmarks.scale.fetches import windows_in
from benchmarks.scale.world import Run, World

from stoker.commit import json_bytes
from stoker.data.index.parted_rows import KEPT_ROWS, SIZED_SHARDS
from stoker.data.index.read import read_index
from stoker.data.index.shard_table import RowsFile, ShardTable, write_shard_table
from stoker.data.loading.order import MAX_LANES, Order
from stoker.data.packing.shard import ROW
from stoker.data.packing.tables.index_writer import WHOLE_ROWS, describe_shard, write_table

ROWS, SHARDS = 100_000, 20_000
"""Rows and shards that are written to measure the bytes of one."""
UNUSED = ["reason", "look"]
"""Columns of a part that an index does not have."""


@dataclass(frozen=True)
class IndexCosts:
    """Bytes of a row and of a shard: in files, and in memory once they are read."""

    row: float
    row_memory: float
    part: int
    """The file with the rows of a full shard."""
    description: float
    description_memory: float
    table: float
    table_memory: float


@dataclass(frozen=True)
class IndexOfHost:
    """What a host reads of an index in an epoch, and keeps in memory."""

    first_bytes: float
    """Before the first batch: the description and the index, or the table of the shards."""
    later_bytes: float
    memory: float
    files: int
    """Requests for all of it."""


@cache
def measured_costs(shard_images: int, seed: int) -> IndexCosts:
    """The bytes of an index of shards of so many images."""
    draw = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train" / "index.parquet"
        write_table(path, index_rows(ROWS, shard_images, draw))
        row, rows = path.stat().st_size / ROWS, read_index(path)
        arrays = (rows.shard, rows.offset, rows.length, rows.label, rows.width, rows.height)
        kept = sum(array.nbytes for array in arrays) + (rows.hashes or memoryview(b"")).nbytes
        write_table(path, index_rows(shard_images, shard_images, draw))
        part = path.stat().st_size
        shards = described(shard_images, draw)
        description = json_bytes({"splits": {"train": {"shards": shards}}})
        files = [RowsFile(f"rows/{n:05d}.parquet", part, s["sha256"]) for n, s in enumerate(shards)]
        write_table(path, write_shard_table(shards, files))
        data = pa.py_buffer(path.read_bytes())
    size = sum(shard["bytes"] for shard in shards)
    facts = {"shard_count": SHARDS, "images": SHARDS * shard_images, "shard_bytes": size}
    return IndexCosts(
        row,
        kept / ROWS,
        part,
        len(description) / SHARDS,
        memory_of(lambda: json.loads(description)) / SHARDS,
        len(data) / SHARDS,
        memory_of(lambda: ShardTable(data, facts)) / SHARDS,
    )


def index_rows(rows: int, shard_images: int, draw: np.random.Generator) -> pa.Table:
    """Rows of an index, as of photographs in folders of their classes."""
    numbers, length = np.arange(rows), draw.integers(20_000, 200_000, rows)
    within = numbers % shard_images
    labels = draw.integers(0, 1000, rows)
    other = draw.integers(0, 100_000, rows)
    names = [
        f"n{one + 1440764:08d}/n{one + 1440764:08d}_{n}"
        for one, n in zip(labels.tolist(), other.tolist(), strict=True)
    ]
    columns: dict[str, Any] = {
        "key": [f"{number:09d}" for number in numbers.tolist()],
        "shard": numbers // shard_images,
        "offset": np.cumsum(length) - within[0],
        "length": length,
        "label": labels,
        "width": draw.integers(200, 600, rows),
        "height": draw.integers(200, 600, rows),
        "hash": [draw.bytes(16) for _ in range(rows)],
        "pixels": [draw.bytes(16) for _ in range(rows)],
        "orientation": np.ones(rows, np.int64),
        "look": [None] * rows,
        "path": [f"train/{name}.JPEG" for name in names],
        "reason": [None] * rows,
    }
    arrays = [pa.array(columns[field.name], field.type, safe=False) for field in ROW]
    return pa.Table.from_arrays(arrays, schema=ROW).drop_columns(UNUSED)


def described(shard_images: int, draw: np.random.Generator) -> list[dict[str, Any]]:
    """The entries of shards in a description."""
    entries = []
    for number in range(SHARDS):
        facts = {"bytes": str(110_000 * shard_images), "sha256": draw.bytes(32).hex()}
        part = pa.table({"reason": pa.nulls(1, pa.string())}).replace_schema_metadata(facts)
        entries.append(describe_shard(number, part) | {"images": shard_images})
    return entries


def memory_of(make: Callable[[], object]) -> int:
    """Bytes that an object keeps in memory, of Python, numpy and pyarrow."""
    arrow = int(pa.total_allocated_bytes())
    tracemalloc.start()
    try:
        made = make()
        kept = tracemalloc.get_traced_memory()[0] + int(pa.total_allocated_bytes()) - arrow
        del made
        return kept
    finally:
        tracemalloc.stop()


def is_parted(world: World) -> bool:
    """Whether `stoker pack` writes the index of such a set in parts."""
    return world.images > WHOLE_ROWS


def whole_index(world: World, costs: IndexCosts) -> IndexOfHost:
    """One index for all: each host reads it once, and keeps all rows."""
    first = world.shards * costs.description + world.images * costs.row
    memory = world.shards * costs.description_memory + world.images * costs.row_memory
    return IndexOfHost(first, 0, memory, 2)


def parted_index(world: World, host_shards: int, costs: IndexCosts) -> IndexOfHost:
    """A file for each shard: a host reads those of its own shards, in every epoch again, from the
    cache where they are still there."""
    shard_images = int(world.sizes[0])
    rows = min(KEPT_ROWS, host_shards * shard_images)
    files = min(SIZED_SHARDS, world.shards)
    memory = world.shards * costs.table_memory + rows * costs.row_memory
    first = world.shards * costs.table + files * costs.part
    return IndexOfHost(first, host_shards * costs.part, memory, 2 + files + host_shards)


def order_memory(world: World, run: Run, host: int) -> int:
    """Bytes of a host's Order with the plans of two epochs and the windows that it keeps."""

    def make() -> Order:
        order = Order(world.sizes, world.fingerprint, world.seed, run.order.lanes)
        order.plan(0)
        order.plan(1)
        return order

    window = run.order.samples_at(np.array([0])).itemsize * run.order.window
    lanes = len(run.shares(host))
    kept = min(4 * max(run.order.lanes, MAX_LANES), 2 * lanes * windows_in(run.order))
    return memory_of(make) + kept * window
