"""The index of a large split: the rows of a shard are read when one of its images is needed.

Invariants: what is read was compared with its hash and with the description, as a whole index is
when it is opened. Memory is O(shards), plus at most KEPT_ROWS rows, whatever the number of images:
the rows of the shards that were used last. A machine that trains reads the rows of the shards in
its own lanes and no others. Any thread may ask.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.data.index.description import Damaged
from stoker.data.index.read import Facts, Index, contradictions, even_side, read_index
from stoker.data.index.shard_table import ShardTable

KEPT_ROWS = 2_000_000
"""104 MB. The windows of 64 lanes have 390,000 rows in shards of 1,000 images."""
SIZED_SHARDS = 16
"""Shards whose images stand for all where only an estimate of their sizes is needed."""

READ_TOGETHER = 64
"""Shards whose rows are in memory at a time where a whole column is read."""

Ints = NDArray[np.int64]


class RowFiles(Protocol):
    """The files with the rows of the shards of a split."""

    @property
    def threads(self) -> int:
        """How many are read at the same time."""

    def place(self, number: int) -> str:
        """Where the rows of a shard are, for messages."""

    def read(self, number: int) -> bytes:
        """The bytes of a file, which are not compared with its hash. Raises StokerError."""

    def close(self) -> None:
        """End what waits for a store."""


class PartedRows:
    """The rows of a large split."""

    def __init__(
        self, table: ShardTable, facts: dict[str, Any], classes: int, codec: str, files: RowFiles
    ) -> None:
        self._table, self._facts, self._files = table, facts, files
        self._classes, self._codec = classes, codec
        self._first = np.concatenate(([0], np.cumsum(table.images)))
        self._parts: OrderedDict[int, Index] = OrderedDict()
        self._rows, self._lock = 0, threading.Lock()
        self._pool = ThreadPoolExecutor(files.threads, "stoker-rows")
        self._thread = threading.local()
        """Of each thread: where the samples are that it asked for last."""
        self.has_hashes = True
        self.largest = int(facts["largest"][0]), int(facts["largest"][1])
        self.mean_bytes = facts["stored_bytes"] / max(facts["images"], 1)
        self.class_counts = np.array(facts["class_counts"], dtype=np.int64)
        self.even_side = int(facts["even_side"])

    def __len__(self) -> int:
        return int(self._first[-1])

    def part(self, number: int) -> Index:
        """The rows of a shard. Raises StokerError where they cannot be read or used."""
        with self._lock:
            if (part := self._parts.get(number)) is not None:
                self._parts.move_to_end(number)
                return part
        part = self.read(number)
        with self._lock:
            if number not in self._parts:
                self._parts[number] = part
                self._rows += len(part.label)
                while self._rows > KEPT_ROWS and len(self._parts) > 1:
                    _, oldest = self._parts.popitem(last=False)
                    self._rows -= len(oldest.label)
        return part

    def read(self, number: int) -> Index:
        """The rows of a shard, which are not kept. Raises StokerError."""
        data = self._checked(number)
        try:
            part = read_index(pa.BufferReader(data))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise Damaged(self._files.place(number), error) from error
        shard, facts = self._table[number], self._facts
        if trouble := row_trouble(part, number, shard, facts, self._classes, self._codec):
            raise Damaged(self._files.place(number), trouble)
        return part

    def _checked(self, number: int) -> bytes:
        """The bytes of the file with the rows of a shard. Raises StokerError."""
        data, file = self._files.read(number), self._table.rows_file(number)
        if len(data) != file.bytes or hashlib.sha256(data).hexdigest() != file.sha256:
            raise Damaged(self._files.place(number), "its hash is not the one in shards.parquet")
        return data

    def prepare(self, samples: Ints) -> None:
        """Read the rows of some samples, several shards at a time; numbers beyond the last sample
        are left out. Raises StokerError."""
        numbers = np.unique(self.shards_of(samples[samples < len(self)])).tolist()
        with self._lock:
            missing = [number for number in numbers if number not in self._parts]
        read = self._pool.map if len(missing) > 1 and self._files.threads > 1 else map
        for _ in read(self.part, missing):
            pass

    def shards_of(self, samples: Ints) -> Ints:
        """The shard of each sample."""
        shards: Ints = np.searchsorted(self._first, samples, side="right") - 1
        if len(shards) and not 0 <= shards.min() <= shards.max() < len(self._table):
            raise IndexError(f"a sample is not one of {len(self):,}")
        return shards

    def row_of(self, sample: int) -> tuple[Index, int]:
        """The rows of a sample's shard, and which of them is the sample's."""
        shard = int(self._first.searchsorted(sample, side="right")) - 1
        if not 0 <= shard < len(self._table):
            raise IndexError(f"{sample:,} is not a sample of {len(self):,}")
        return self.part(shard), sample - int(self._first[shard])

    def place_of(self, sample: int) -> tuple[int, int, int]:
        part, row = self.row_of(sample)
        return int(part.shard[row]), int(part.offset[row]), int(part.length[row])

    def take(self, name: str, samples: Ints) -> NDArray[Any]:
        """A column of some samples."""
        column = np.empty(len(samples), DTYPES[name])
        for part, rows, places in self._groups(samples):
            column[places] = getattr(part, name)[rows]
        return column

    def _groups(self, samples: Ints) -> list[tuple[Index, Ints, Ints]]:
        """For each shard of some samples: its rows, which of them, and their places in `samples`.
        The columns of the same samples are asked for one after the other."""
        groups: list[tuple[Index, Ints, Ints]]
        known, groups = getattr(self._thread, "groups", (None, []))
        if known is not None and np.array_equal(known, samples):
            return groups
        self.prepare(samples)
        shards = self.shards_of(samples)
        groups = []
        for shard in set(shards.tolist()):
            places = np.flatnonzero(shards == shard)
            groups.append((self.part(shard), samples[places] - self._first[shard], places))
        self._thread.groups = samples.copy(), groups
        return groups

    def whole(self, name: str, begin: int, end: int) -> NDArray[Any]:
        """A column from one sample to another, read some shards at a time."""
        column, place = np.empty(max(end - begin, 0), DTYPES[name]), 0
        pieces = self._between(begin, end)
        while some := [*islice(pieces, READ_TOGETHER)]:
            parts = self._pool.map(self.read, [shard for shard, _ in some])
            for part, (_, rows) in zip(parts, some, strict=True):
                values = getattr(part, name)[rows]
                column[place : place + len(values)] = values
                place += len(values)
        return column

    def _between(self, begin: int, end: int) -> Iterator[tuple[int, slice]]:
        """The shards that hold the samples from one to another, and which of their rows."""
        shard = int(np.searchsorted(self._first, begin, side="right")) - 1
        while shard < len(self._table) and (first := int(self._first[shard])) < end:
            yield shard, slice(max(begin - first, 0), end - first)
            shard += 1

    def hash_of(self, sample: int) -> memoryview | None:
        part, row = self.row_of(sample)
        return part.hash_of(row)

    def some_sizes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Of the images of SIZED_SHARDS shards, spread over the split."""
        numbers = np.unique(np.linspace(0, len(self._table) - 1, SIZED_SHARDS).astype(int)).tolist()
        parts = [self.part(number) for number in numbers if self._table.images[number]]
        nothing = [np.empty(0, np.int32)]
        return (
            np.concatenate([part.width for part in parts] or nothing),
            np.concatenate([part.height for part in parts] or nothing),
        )

    def paths_of(self, samples: list[int]) -> list[str]:
        wanted = np.array(samples, dtype=np.int64)
        shards = self.shards_of(wanted)
        paths = dict[int, str]()
        for shard in sorted(set(shards.tolist())):
            column = self._path_column(shard)
            for sample in wanted[shards == shard].tolist():
                paths[sample] = str(column[sample - int(self._first[shard])].as_py())
        return [paths[sample] for sample in samples]

    def paths(self) -> Iterator[str]:
        for shard in range(len(self._table)):
            yield from self._path_column(shard).to_pylist()

    def _path_column(self, shard: int) -> pa.ChunkedArray:
        """The paths of a shard. Raises StokerError."""
        try:
            with pq.ParquetFile(pa.BufferReader(self._checked(shard))) as file:
                return file.read(columns=["path"]).column("path")
        except (OSError, pa.ArrowException) as error:
            raise Damaged(self._files.place(shard), error) from error

    def close(self) -> None:
        self._files.close()


DTYPES = {
    "shard": np.int32,
    "offset": np.int64,
    "length": np.int32,
    "label": np.int64,
    "width": np.int32,
    "height": np.int32,
}


def row_trouble(
    part: Index, number: int, shard: Facts, facts: dict[str, Any], classes: int, codec: str
) -> str | None:
    """What in the rows of a shard contradicts the description of its split, the number of classes
    or the codec; None where nothing does."""
    if texts := contradictions(part, [shard], classes, codec, number):
        return texts[0]
    if part.hashes is None:
        return "it has no column hash"
    pixels = part.width.astype(np.int64) * part.height
    largest = int(part.length.max(initial=0)), int(pixels.max(initial=0))
    if any(one > most for one, most in zip(largest, facts["largest"], strict=True)):
        return "it has a larger image than dataset.json states"
    if facts["even_side"] and len(pixels) and even_side(part, codec) != facts["even_side"]:
        return "its images are not the squares of one size that dataset.json states"
    return None


class PartedColumn:
    """A column of a large split: by sample, by an array of samples, or by a slice of them."""

    def __init__(self, rows: PartedRows, name: str) -> None:
        self._rows, self._name = rows, name

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, samples: Any) -> Any:
        if isinstance(samples, slice):
            begin, end, step = samples.indices(len(self))
            return self._rows.whole(self._name, begin, end)[:: step if step > 0 else 1]
        if isinstance(samples, (int, np.integer)):
            part, row = self._rows.row_of(int(samples))
            return getattr(part, self._name)[row]
        return self._rows.take(self._name, np.asarray(samples, dtype=np.int64))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        whole: NDArray[Any] = self[:]
        return whole if dtype is None else whole.astype(dtype)
