"""The index of MosaicML Streaming (MDS): index.json and shard.*.mds, which may be compressed.

Invariant: a pure reading of the index; which files are there decides between plain and compressed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stoker.data.sources.shards.index import MOST_COLUMNS, Wrong, count_in, field, file_name
from stoker.data.sources.shards.samples import CODECS, SampleColumn, SampleFile

TOOL = "MosaicML Streaming"
VERSION = 2


def is_mds(index: dict[str, Any]) -> bool:
    shards = index.get("shards")
    return isinstance(shards, list) and bool(shards) and isinstance(shards[0], dict)


def mds_files(folder: Path, index: dict[str, Any]) -> list[SampleFile]:
    """The shards of an index, in order. Raises Wrong where it is not one of MDS."""
    return [mds_file(folder, shard) for shard in field(index, "shards", list)]


def mds_file(folder: Path, shard: Any) -> SampleFile:
    kind = field(shard, "format", str)
    if kind != "mds":
        raise Wrong(f"its shards have the format '{kind[:40]}', and only 'mds' is read")
    if field(shard, "version", int) != VERSION:
        raise Wrong(f"its shards have version {shard['version']}, and version {VERSION} is read")
    columns = columns_of(shard)
    raw = folder / file_name(field(shard, "raw_data", dict), "basename")
    count, compression = count_in(shard, "samples"), shard.get("compression")
    if raw.exists() or not compression:
        return SampleFile(raw, None, count, columns)
    method = str(compression).partition(":")[0]
    if method not in CODECS:
        raise Wrong(f"its shards are compressed with '{method[:40]}', which is not read")
    packed = folder / file_name(field(shard, "zip_data", dict), "basename")
    return SampleFile(packed, CODECS[method], count, columns)


def columns_of(shard: Any) -> tuple[SampleColumn, ...]:
    names, encodings = field(shard, "column_names", list), field(shard, "column_encodings", list)
    sizes = field(shard, "column_sizes", list)
    if not len(names) == len(encodings) == len(sizes) <= MOST_COLUMNS:
        raise Wrong("its lists of columns have different lengths")
    if not all(isinstance(text, str) for text in (*names, *encodings)):
        raise Wrong("a column has no name")
    if not all(size is None or (isinstance(size, int) and 0 <= size < 1 << 32) for size in sizes):
        raise Wrong("a column has a wrong size")
    return tuple(map(SampleColumn, names, encodings, sizes))
