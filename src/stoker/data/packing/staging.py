"""Images that come in a stream: made ready as they come, laid out when all of them are known.

A stream (an archive, a download, a table with images in it) says only at its end which classes
there are, and comes sorted as often as not, while a set is stored mixed. So images are decoded,
shrunk and staged in the order they come, a chunk a task; then shards are copied together from the
stage. The source is never stored; the stage takes as much room as the packed set, until it is done.

Invariants: a chunk is committed like a shard, by a hash of what came. A stream that is given again
after a kill is read again but not worked on again. The shards are those of a folder with the same
names and bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.data.images.decode_any import Rejected
from stoker.data.images.encode import Storage, short_hash
from stoker.data.packing.shard import (
    ROW,
    Row,
    ShardReport,
    ShardTask,
    part_facts,
    process,
    write_shard,
)
from stoker.data.sources.item import Item
from stoker.errors import StokerError
from stoker.fleet.workers import map_tasks
from stoker.text import shown

CHUNK_IMAGES = 256
CHUNK_BYTES = 16 << 20
CHUNK_ITEMS = 16384
"""A chunk ends at whichever comes first: it travels to its worker through memory. What has no data
costs nothing and counts for little."""
STAGED = pa.schema(
    [
        *ROW,
        ("name", pa.binary()),
        ("class_name", pa.binary()),
        ("split_name", pa.string()),
        ("again", pa.bool_()),
    ]
)
"""A row with what only the arrangement needs; names are bytes, as they came."""


@dataclass(frozen=True)
class Chunk:
    """Images that came with the task."""

    items: tuple[Item, ...]
    stamp: str = ""
    """What tells these inputs from others where their bytes must not (a list of URLs)."""
    schema = STAGED

    def digest(self) -> str:
        if self.stamp:
            return self.stamp
        digest = hashlib.sha256()
        for item in self.items:
            known = [os.fsencode(item.name).hex(), item.reason, item.label, item.split]
            digest.update(json.dumps([*known, len(item.data or b"")]).encode())
            digest.update(item.data or b"")
        return digest.hexdigest()

    def stored(self, storage: Storage, alone: Path) -> Iterator[tuple[Row, bytes]]:
        for item in self.items:
            try:
                if item.data is None and item.reason is None:
                    raise StokerError("what was staged changed meanwhile: give the command again")
                if item.data is None:
                    raise Rejected(item.reason or "")
                row, kept = process(item.data, storage, alone)
            except Rejected as why:
                row, kept = {"reason": str(why)}, b""
            label = None if item.label is None else os.fsencode(item.label)
            row |= {"class_name": label, "split_name": item.split, "again": item.again}
            row["name"] = os.fsencode(item.name)
            yield row | {"path": shown(item.name)}, kept

    def unchanged(self, table: pa.Table) -> bool:
        return True not in table.column("again").to_pylist()


@dataclass(frozen=True)
class Staged:
    """Images that were made ready before, to be copied into their shard."""

    folder: str
    rows: pa.Table
    schema = ROW

    def digest(self) -> str:
        what = self.rows.select(["path", "hash", "reason"]).to_pydict()
        what["hash"] = [value.hex() if value else None for value in what["hash"]]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()

    def stored(self, storage: Storage, alone: Path) -> Iterator[tuple[Row, bytes]]:
        known = [name for name in ROW.names if name not in ("key", "label", "shard", "offset")]
        for row in self.rows.to_pylist():
            data = b""
            if row["reason"] is None:
                # Opened each time: a shard's images lie in as many chunks as it has images.
                with (Path(self.folder) / f"{row['shard']:05d}.tar").open("rb", 0) as chunk:
                    data = os.pread(chunk.fileno(), row["length"], row["offset"])
                if short_hash(data) != row["hash"]:
                    raise StokerError(
                        f"{self.folder} was damaged while packing went on ({row['path']}): "
                        "give the same command again"
                    )
            yield {name: row[name] for name in known}, data

    def unchanged(self, table: pa.Table) -> bool:
        return True


def stage(
    chunks: Iterable[Chunk],
    target: Path,
    storage: Storage,
    workers: int,
    told: Callable[[ShardReport], None],
) -> tuple[pa.Table, str]:
    """Make every chunk ready; what came, row by row, and a hash of it all."""
    count = 0

    def tasks() -> Iterator[ShardTask]:
        nonlocal count
        for chunk in chunks:
            yield stage_task(target, storage, count, chunk)
            count += 1

    with closing(map_tasks(write_shard, tasks(), workers)) as reports:
        for report in reports:
            told(report)
    empty = Chunk(())
    parts = [pq.read_table(stage_task(target, storage, n, empty).part) for n in range(count)]
    if not parts:
        return pa.Table.from_pylist([], schema=STAGED), content_of([])
    content = content_of([part_facts(part)["inputs"] for part in parts])
    rows = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
    return rows.combine_chunks(), content


def stage_task(target: Path, storage: Storage, number: int, chunk: Chunk) -> ShardTask:
    labels = (0,) * len(chunk.items)
    return ShardTask(str(target / ".parts"), "stage", number, 0, chunk, labels, storage)


def content_of(inputs: list[str]) -> str:
    """What tells one stream from another."""
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()


def in_chunks(items: Iterable[Item]) -> Iterator[Chunk]:
    """Images a few at a time, cut where the images themselves say, so that the same stream is
    always cut the same."""
    chunk: list[Item] = []
    images = size = 0
    for item in items:
        chunk.append(item)
        images += bool(item.data)
        size += len(item.data or b"")
        if images >= CHUNK_IMAGES or size >= CHUNK_BYTES or len(chunk) >= CHUNK_ITEMS:
            yield Chunk(tuple(chunk))
            chunk, images, size = [], 0, 0
    if chunk:
        yield Chunk(tuple(chunk))
