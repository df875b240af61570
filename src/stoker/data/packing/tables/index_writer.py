"""The index of a split, written from the parts of its shards.

Invariants: a split of at most WHOLE_ROWS images has its index in one file, as all sets had before
large ones. The index of a larger split is written shard by shard, and memory holds the rows of one
shard at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.commit import publish, sha256_file, temporary
from stoker.data.images.encode import Storage
from stoker.data.index.read import Facts
from stoker.data.index.shard_table import TABLE, RowsFile, rows_name, write_shard_table
from stoker.data.packing.duplicates import with_repeated
from stoker.data.packing.tables.repeats import NEEDED, accepted, repeated_rows
from stoker.data.packing.tables.summary import SplitSummary
from stoker.data.packing.target.part import part_facts

WHOLE_ROWS = 5_000_000
"""260 MB of memory in each process that opens the index."""
LOOKS = ["look", "pixels", "path"]


class SplitTables:
    """The tables of a split, which are written into its folder."""

    def __init__(self, folder: Path, parts: list[Path], classes: int, storage: Storage) -> None:
        self._folder, self._parts, self._near = folder, parts, storage.near_duplicates
        self.is_large = sum(pq.read_metadata(path).num_rows for path in parts) > WHOLE_ROWS
        self.summary = SplitSummary(classes, storage.codec)
        self.shards: list[Facts] = []
        self.facts: dict[str, Any] = {}
        """The description of the split, once it is written."""
        self._table: pa.Table | None = None

    def write(self, split: str) -> pa.Table:
        """Write the index; returns the rows of rejected.parquet."""
        rejected, tables, files = [], [], []
        for number, path in enumerate(self._parts):
            part = pq.read_table(path)
            self.shards.append(describe_shard(number, part))
            rows = part.replace_schema_metadata(None)
            rejected.append(rejects_of(rows, split))
            rows = rows.filter(rows.column("reason").is_null()).drop_columns(["reason"])
            self.summary.add(rows)
            if not self._near:
                rows = rows.drop_columns(["look"])
            if self.is_large:
                files.append(self._write_rows(number, rows))
            else:
                tables.append(rows)
        if self.is_large:
            self.facts = self._large_facts(files)
        else:
            self._table = pa.concat_tables(tables)
            index = write_table(self._folder / "index.parquet", self._table)
            images = self.summary.images
            self.facts = {"images": images, "index_sha256": index, "shards": self.shards}
        return pa.concat_tables(rejected)

    def _write_rows(self, number: int, rows: pa.Table) -> RowsFile:
        name = rows_name(number)
        sha256 = write_table(self._folder / name, rows)
        return RowsFile(name, (self._folder / name).stat().st_size, sha256)

    def _large_facts(self, files: list[RowsFile]) -> dict[str, Any]:
        table = write_shard_table(self.shards, files)
        return {
            "images": self.summary.images,
            "shard_count": len(self.shards),
            "shard_bytes": sum(int(shard["bytes"]) for shard in self.shards),
            "shards_sha256": write_table(self._folder / TABLE, table),
            "class_counts": self.summary.labels.tolist(),
            "largest": self.summary.largest,
            "stored_bytes": self.summary.stored_bytes,
            "even_side": self.summary.even_side,
        }

    def rows_to_compare(self, repeated: NDArray[np.void] | None) -> pa.Table:
        """The rows in which duplicates are counted: those whose pixel hash is one of `repeated`, or
        all where it is None."""
        if self._table is None:
            assert repeated is not None
            return repeated_rows(self._parts, repeated)
        rows = self._table.select(NEEDED)
        return rows if repeated is None else with_repeated({"": rows}, repeated)[""]

    def looks(self) -> pa.Table:
        """All rows with their looks: 40 bytes of memory an image, and its path."""
        if self._table is not None:
            return self._table.select(LOOKS)
        return pa.concat_tables([accepted(path, LOOKS) for path in self._parts])


def rejects_of(rows: pa.Table, split: str) -> pa.Table:
    """The rows of rejected.parquet for one part."""
    rejects = rows.filter(rows.column("reason").is_valid()).select(["path", "label", "reason"])
    return rejects.append_column("split", pa.array([split] * rejects.num_rows, pa.string()))


def describe_shard(number: int, part: pa.Table) -> Facts:
    facts = part_facts(part)
    return {
        "name": f"{number:05d}.tar",
        "images": part.column("reason").null_count,
        "bytes": int(facts["bytes"]),
        "sha256": facts["sha256"],
    }


def write_table(path: Path, table: pa.Table) -> str:
    """Write a Parquet file, complete or not at all; returns its SHA-256."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = temporary(path)
    pq.write_table(table, draft)
    publish(draft, path)
    return sha256_file(path)
