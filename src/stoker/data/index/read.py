"""The index of a split: one row a stored image.

Invariants: an index without contradictions can be used without further checks. Every row is an
image that lies in its shard behind the row before it, has a class of the set and a size that
packing accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.data.index.columns import numbers
from stoker.text import plural

HASH_BYTES = 16
MAX_PIXELS = 100_000_000
"""Of one image; larger ones are not packed."""
NPY_HEADER = 128
"""Bytes before the pixels of a raw image."""
COLUMNS = {
    "key": pa.string(),
    "shard": pa.int32(),
    "offset": pa.int64(),
    "length": pa.int32(),
    "label": pa.int32(),
    "width": pa.int32(),
    "height": pa.int32(),
    "hash": pa.binary(HASH_BYTES),
    "path": pa.string(),
}
Facts = dict[str, Any]
"""Name, images, bytes and hash of a shard, as the description of a set has them."""
TEXTS = ("key", "path")
"""Read only where an image is named."""


@dataclass(frozen=True)
class Index:
    """The columns of an index that are read for every image."""

    shard: NDArray[Any]
    offset: NDArray[Any]
    length: NDArray[Any]
    label: NDArray[np.int64]
    width: NDArray[Any]
    height: NDArray[Any]
    hashes: memoryview | None
    """HASH_BYTES for each row; None where the index has no hashes."""

    def hash_of(self, row: int) -> memoryview | None:
        return self.hashes and self.hashes[row * HASH_BYTES : (row + 1) * HASH_BYTES]


def read_index(source: Path | pa.BufferReader) -> Index:
    """Read an index. Raises OSError, ValueError or pyarrow's errors where it is none."""
    # Not read_table: its support for folders of files costs each loader 13 MB.
    with pq.ParquetFile(source) as file:
        check_columns(file.schema_arrow)
        columns = [name for name in COLUMNS if name not in TEXTS]
        # Threads take longer than the rows of one shard.
        table = file.read(columns=columns, use_threads=isinstance(source, Path))
    arrays = {name: numbers(table, name) for name in table.column_names if name != "hash"}
    arrays["label"] = arrays["label"].astype(np.int64)
    hashes = hashes_of(table) if "hash" in table.column_names else None
    return Index(**arrays, hashes=hashes)


def check_columns(schema: pa.Schema) -> None:
    """Raise ValueError where a column is missing, repeated, misplaced or of another type."""
    expected = [name for name in COLUMNS if name != "hash" or "hash" in schema.names]
    names = [name for name in schema.names if name in COLUMNS]
    if missing := [name for name in expected if name not in names]:
        raise ValueError(f"it has no column {missing[0]}")
    if names != expected:
        raise ValueError(f"its columns are {', '.join(names)}, not {', '.join(expected)}")
    for name in names:
        if (kind := schema.field(name).type) != COLUMNS[name]:
            raise ValueError(f"its column {name} is {kind}, not {COLUMNS[name]}")


def hashes_of(table: pa.Table) -> memoryview:
    """The hashes of all rows, one after the other. Raises ValueError where one is missing."""
    column = table.column("hash").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks else pa.array([], COLUMNS["hash"])
    if column.null_count:
        raise ValueError("a row has no hash")
    begin, end = column.offset * HASH_BYTES, (column.offset + len(column)) * HASH_BYTES
    return memoryview(column.buffers()[1] or b"").cast("B")[begin:end]


def contradictions(
    index: Index, shards: Sequence[Facts], classes: int, codec: str, first: int = 0
) -> list[str]:
    """What in an index contradicts the shards that it is for, of which the first has the number
    `first`, the number of classes or the codec."""
    sizes = [shard["images"] for shard in shards]
    if len(index.shard) != sum(sizes):
        rows, images = plural(len(index.shard), "row"), plural(sum(sizes), "image")
        return [f"it has {rows}, and the shards have {images}"]
    if not np.array_equal(index.shard, np.repeat(first + np.arange(len(sizes)), sizes)):
        return ["its rows are not the images of the shards in order"]
    offset, length = index.offset, index.length.astype(np.int64)
    width, height = index.width.astype(np.int64), index.height.astype(np.int64)
    limits = np.array([shard["bytes"] for shard in shards], dtype=np.int64)
    outside = (offset < 0) | (length < 1) | (offset > limits[index.shard - first] - length)
    # Images do not overlap.
    apart = (index.shard[1:] != index.shard[:-1]) | (offset[1:] >= offset[:-1] + length[:-1])
    outside[1:] |= ~apart
    texts = [
        fault(
            outside,
            lambda row: (
                "points outside its shard or into another image "
                f"({length[row]} bytes at byte {offset[row]})"
            ),
        ),
        fault(
            (index.label < 0) | (index.label >= classes),
            lambda row: f"has label {index.label[row]}, and the set has {plural(classes, 'class')}",
        ),
        fault(
            (width < 1) | (height < 1) | (width * height > MAX_PIXELS),
            lambda row: f"has an image of {width[row]} x {height[row]} pixels",
        ),
    ]
    if codec == "raw":
        texts.append(
            fault(
                length != NPY_HEADER + width * height * 3,
                lambda row: f"has {length[row]} bytes for {width[row]} x {height[row]} pixels",
            )
        )
    return [text for text in texts if text]


def even_side(index: Index, codec: str) -> int:
    """The side of the images, where all are raw squares of one size at even distances; else 0."""
    if codec != "raw" or not len(index.label):
        return 0
    side, length = int(index.width[0]), int(index.length[0])
    square = (index.width == side).all() and (index.height == side).all()
    distances = np.diff(index.offset)[np.diff(index.shard) == 0]
    even = (index.length == length).all() and (distances == distances[:1]).all()
    return side if square and even else 0


def fault(rows: NDArray[np.bool_], text_of: Callable[[int], str]) -> str:
    """A sentence about the first of the rows that are wrong; empty where none is."""
    if not rows.any():
        return ""
    row, others = int(np.flatnonzero(rows)[0]), int(rows.sum()) - 1
    more = f", and {others:,} more rows like it" if others else ""
    return f"row {row} {text_of(row)}{more}"
