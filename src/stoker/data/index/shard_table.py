"""The shards of a large split, in a table instead of a list in the description.

    train/shards.parquet        a row for each shard
    train/rows/00000.parquet    the rows of the index that belong to shard 0

Invariants: the description holds the hash of the table, and the table the hash of every shard and
of its rows. Shard number n is row n, and its files have the names above. A table without trouble
can be used without further checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.data.index.columns import numbers
from stoker.data.index.description import MOST_BYTES, is_parted
from stoker.data.index.read import Facts

TABLE, ROWS = "shards.parquet", "rows"
NUMBER = re.compile(r"[0-9]{5,19}")
SHA256_BYTES = 32
SCHEMA = pa.schema(
    [
        ("images", pa.int32()),
        ("bytes", pa.int64()),
        ("sha256", pa.binary(SHA256_BYTES)),
        ("rows_bytes", pa.int64()),
        ("rows_sha256", pa.binary(SHA256_BYTES)),
    ]
)
Ints = NDArray[np.int64]


class ShardList(Protocol):
    """The shards of a split, by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int, /) -> Facts: ...

    def __iter__(self) -> Iterator[Facts]: ...


@dataclass(frozen=True)
class RowsFile:
    """The file with the rows of a shard."""

    name: str
    """Within the folder of the split."""
    bytes: int
    sha256: str


class ShardTable:
    """The shards of a large split: a ShardList. Raises ValueError or pyarrow's errors where the
    table contradicts the description of its split, or is none."""

    def __init__(self, data: pa.Buffer, facts: Mapping[str, Any]) -> None:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            table = file.read()
        if table.schema.remove_metadata() != SCHEMA:
            raise ValueError("its columns are not those of a table of shards")
        if any(column.null_count for column in table.columns):
            raise ValueError("a value is missing")
        columns = (numbers(table, name) for name in ("images", "bytes", "rows_bytes"))
        self.images, self.bytes, self._rows_bytes = (one.astype(np.int64) for one in columns)
        self._sha256 = hashes_of(table, "sha256")
        self._rows_sha256 = hashes_of(table, "rows_sha256")
        for column in (self.images, self.bytes, self._rows_bytes):
            if ((column < 0) | (column >= MOST_BYTES)).any():
                raise ValueError("a count of images or bytes is impossible")
        stated = [facts[name] for name in ("shard_count", "images", "shard_bytes")]
        if [len(self), int(self.images.sum()), int(self.bytes.sum())] != stated:
            raise ValueError("it has other shards, images or bytes than dataset.json")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int, /) -> Facts:
        begin = number * SHA256_BYTES
        return {
            "name": shard_name(number),
            "images": int(self.images[number]),
            "bytes": int(self.bytes[number]),
            "sha256": self._sha256[begin : begin + SHA256_BYTES].hex(),
        }

    def __iter__(self) -> Iterator[Facts]:
        return (self[number] for number in range(len(self)))

    def rows_file(self, number: int) -> RowsFile:
        begin = number * SHA256_BYTES
        sha256 = self._rows_sha256[begin : begin + SHA256_BYTES].hex()
        return RowsFile(rows_name(number), int(self._rows_bytes[number]), sha256)


def hashes_of(table: pa.Table, name: str) -> memoryview:
    """The hashes of a column, one after the other."""
    column = table.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    begin, end = column.offset * SHA256_BYTES, (column.offset + len(column)) * SHA256_BYTES
    return memoryview(column.buffers()[1] or b"").cast("B")[begin:end]


def shard_name(number: int) -> str:
    return f"{number:05d}.tar"


def rows_name(number: int) -> str:
    return f"{ROWS}/{number:05d}.parquet"


def split_table(facts: Mapping[str, Any]) -> str:
    """The name of the table of a split whose hash the description holds, within its folder."""
    return TABLE if is_parted(facts) else "index.parquet"


def table_sha256(facts: Mapping[str, Any]) -> str:
    """The hash of that table."""
    return str(facts["shards_sha256" if is_parted(facts) else "index_sha256"])


def shard_count(facts: Mapping[str, Any]) -> int:
    return int(facts["shard_count"]) if is_parted(facts) else len(facts["shards"])


def bytes_in(facts: Mapping[str, Any]) -> int:
    """The bytes of the shards of a split."""
    if is_parted(facts):
        return int(facts["shard_bytes"])
    return sum(int(shard["bytes"]) for shard in facts["shards"])


def table_names(facts: Mapping[str, Any]) -> list[str]:
    """The names of the tables of a split, within its folder."""
    if not is_parted(facts):
        return ["index.parquet"]
    return [TABLE, *(rows_name(number) for number in range(facts["shard_count"]))]


def shard_names(facts: Mapping[str, Any]) -> list[str]:
    """The names of the shards of a split, within its folder."""
    if not is_parted(facts):
        return [str(shard["name"]) for shard in facts["shards"]]
    return [shard_name(number) for number in range(facts["shard_count"])]


def has_numbered(facts: Mapping[str, Any], name: str) -> bool:
    """Whether a file within the folder of a large split is one of its shards, or their rows."""
    digits = NUMBER.search(name)
    if not is_parted(facts) or digits is None:
        return False
    number = int(digits[0])
    return number < facts["shard_count"] and name in (shard_name(number), rows_name(number))


def sizes_of(shards: ShardList) -> tuple[Ints, Ints]:
    """The images and the bytes of each shard."""
    if isinstance(shards, ShardTable):
        return shards.images, shards.bytes
    images, sizes = ([shard[unit] for shard in shards] for unit in ("images", "bytes"))
    return np.array(images, dtype=np.int64), np.array(sizes, dtype=np.int64)


def rows_files(shards: ShardList) -> Iterator[RowsFile]:
    """The files with the rows of each shard; none where the index is one file."""
    if isinstance(shards, ShardTable):
        yield from map(shards.rows_file, range(len(shards)))


def write_shard_table(shards: Sequence[Facts], rows: Sequence[RowsFile]) -> pa.Table:
    """The table of shards whose rows are in these files."""
    columns = [
        [shard["images"] for shard in shards],
        [shard["bytes"] for shard in shards],
        [bytes.fromhex(shard["sha256"]) for shard in shards],
        [file.bytes for file in rows],
        [bytes.fromhex(file.sha256) for file in rows],
    ]
    arrays = [pa.array(c, field.type) for c, field in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)
