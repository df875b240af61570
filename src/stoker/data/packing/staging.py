"""Staging: the images of a stream are prepared in the order they arrive, and arranged at its end.

A stream (an archive, a list of URLs, a table with images in it) is known in full only at its end:
until then its classes are unknown, and it often arrives sorted by class, while a set is stored
mixed. So images are decoded, shrunk and staged in the order they arrive, one chunk a task; then the
shards are copied together from the stage. The source is never stored. The stage takes as much disk
space as the packed set, until the set is complete; for a set in a store it is beside the cache.

Invariants: a chunk is committed like a shard, by a hash of its inputs. A stream that is read again
after a kill is not decoded again. The shards are those of a folder with the same names and bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.commit import sha256_json
from stoker.data.images.decode_any import Rejected
from stoker.data.images.encode import Storage, short_hash
from stoker.data.packing.shard import (
    ROW,
    OnReport,
    Row,
    ShardTask,
    TaskPlace,
    process,
    write_shards,
)
from stoker.data.packing.target.part import part_facts, part_path
from stoker.data.sources.http import PRIVATE_REASONS
from stoker.data.sources.item import Item
from stoker.errors import StokerError
from stoker.text import shown

CHUNK_IMAGES = 256
CHUNK_BYTES = 16 << 20
CHUNK_ITEMS = 16384
"""A chunk, which is sent through memory, ends at the first of these limits. Items without data
count only for the last."""
STAGED = pa.schema(
    [
        *ROW,
        ("name", pa.binary()),
        ("class_name", pa.binary()),
        ("split_name", pa.string()),
        ("again", pa.bool_()),
    ]
)
"""With the columns that only the arrangement needs; names need not be valid text."""


@dataclass(frozen=True)
class Chunk:
    """Images that are sent with their task."""

    items: tuple[Item, ...]
    stamp: str = ""
    """A hash of these inputs in place of their bytes, which may differ with each download."""
    allow_private: bool = False
    """Downloads that were refused for their private address are worth another try."""
    schema = STAGED

    def digest(self) -> str:
        if self.stamp:
            return self.stamp
        digest = hashlib.sha256()
        for item in self.items:
            facts = [os.fsencode(item.name).hex(), item.reason, item.label, item.split]
            digest.update(json.dumps([*facts, len(item.data or b"")]).encode())
            digest.update(item.data or b"")
        return digest.hexdigest()

    def prepare(self, storage: Storage, large_lock: Path) -> Iterator[tuple[Row, bytes]]:
        for item in self.items:
            try:
                if item.data is None and item.reason is None:
                    raise StokerError("the staged images were changed: run the same command again")
                if item.data is None:
                    raise Rejected(item.reason or "")
                row, stored = process(item.data, storage, large_lock)
            except Rejected as rejection:
                row, stored = {"reason": str(rejection)}, b""
            label = None if item.label is None else os.fsencode(item.label)
            row |= {"class_name": label, "split_name": item.split, "again": item.again}
            row |= {"name": os.fsencode(item.name), "path": shown(item.name)}
            yield row, stored

    def still_true(self, table: pa.Table) -> bool:
        """Whether no download is worth another try."""
        refused = set(PRIVATE_REASONS) if self.allow_private else set()
        reasons = table.column("reason").to_pylist()
        return True not in table.column("again").to_pylist() and refused.isdisjoint(reasons)


@dataclass(frozen=True)
class Staged:
    """Staged images, to be copied into their shard."""

    folder: str
    rows: pa.Table
    schema = ROW

    def digest(self) -> str:
        columns = self.rows.select(["path", "hash", "reason"]).to_pydict()
        columns["hash"] = [value.hex() if value else None for value in columns["hash"]]
        return sha256_json(columns)

    def prepare(self, storage: Storage, large_lock: Path) -> Iterator[tuple[Row, bytes]]:
        names = [name for name in ROW.names if name not in ("key", "label", "shard", "offset")]
        for row in self.rows.to_pylist():
            data = b""
            if row["reason"] is None:
                # Opened for each image: the images of a shard lie in as many chunks.
                with (Path(self.folder) / f"{row['shard']:05d}.tar").open("rb", 0) as chunk:
                    data = os.pread(chunk.fileno(), row["length"], row["offset"])
                if short_hash(data) != row["hash"]:
                    raise StokerError(
                        f"{self.folder} was damaged during packing ({row['path']}): "
                        "run the same command again"
                    )
            yield {name: row[name] for name in names}, data

    def still_true(self, table: pa.Table) -> bool:
        return True


def stage(
    chunks: Iterable[Chunk], target: Path, storage: Storage, place: TaskPlace, on_report: OnReport
) -> tuple[pa.Table, str]:
    """Stage every chunk; returns a row for each image, and a hash of all inputs."""
    tasks = (stage_task(target, storage, number, chunk) for number, chunk in enumerate(chunks))
    count = write_shards(tasks, place, on_report)
    paths = [part_path(target / ".parts", "stage", number) for number in range(count)]
    parts = [pq.read_table(path) for path in paths]
    content = sha256_json([part_facts(part)["inputs"] for part in parts])
    tables = [part.replace_schema_metadata(None) for part in parts] or [STAGED.empty_table()]
    return pa.concat_tables(tables).combine_chunks(), content


def stage_task(target: Path, storage: Storage, number: int, chunk: Chunk) -> ShardTask:
    labels = (0,) * len(chunk.items)
    return ShardTask(str(target / ".parts"), "stage", number, 0, chunk, labels, storage)


def in_chunks(items: Iterable[Item]) -> Iterator[Chunk]:
    """Chunks of items: the same stream is always cut at the same items."""
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
