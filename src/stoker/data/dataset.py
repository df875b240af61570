"""Opening a packed set: the description, the index of a split, the bytes of a sample.

Invariants: files are opened read-only and never written, and memory does not grow with the shards.
A set without its committed description does not open. Sample number i is row i of the split's
index; rows are in shard order. The index of a large split is read in parts, as they are needed. A
set in an object store or on a web server is opened like one in a folder: its index and its shards
come through the cache of this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stoker.data.index.description import Damaged, description_trouble, is_parted
from stoker.data.index.folder_rows import FolderRows
from stoker.data.index.parted_rows import PartedColumn, PartedRows, RowFiles
from stoker.data.index.read import Facts
from stoker.data.index.shard_table import TABLE, ShardList, ShardTable, sizes_of
from stoker.data.index.whole_rows import WholeRows
from stoker.data.seal import FORMAT, seal_holds
from stoker.data.shards import CHANGED, FolderShards, Shards
from stoker.data.stored_set import MOST_BYTES, StoredSet
from stoker.errors import BadRequest, StokerError, is_readable
from stoker.host.plain_file import open_plain, read_plain
from stoker.stores.location import location_of
from stoker.stores.objects import Missing


class Dataset:
    """A packed set. Raises BadRequest where the folder is none, StokerError where it is damaged."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        location = location_of(path)
        self.store = StoredSet(location) if location else None
        self.path = Path(path)
        self._tables: dict[str, ShardTable] = {}
        self.name = str(location or self.path)
        """The folder or the location, for messages and records."""
        file = f"{self.name}/dataset.json"
        try:
            self.description: dict[str, Any] = json.loads(self._description_text())
        except (FileNotFoundError, NotADirectoryError, Missing) as error:
            raise BadRequest(
                f"{self.name} is not a packed set (it has no dataset.json): pack it with "
                f"'stoker pack {'FOLDER ' if location else ''}{self.name}'"
            ) from error
        except (ValueError, RecursionError) as error:
            raise Damaged(file, error) from error
        if not isinstance(self.description, dict):
            raise Damaged(file, "it is not a JSON object")
        number = self.description.get("format")
        if not is_readable(self.name, number, FORMAT):
            raise Damaged(file, f"its format is {number!r}")
        if not seal_holds(self.description):
            raise Damaged(file, "its content does not match its digest")
        if trouble := description_trouble(self.description):
            raise Damaged(file, trouble)

    def _description_text(self) -> str:
        if self.store:
            return self.store.description().decode()
        return read_plain(self.path / "dataset.json", MOST_BYTES).decode()

    @staticmethod
    def is_packed(path: str | os.PathLike[str]) -> bool:
        """Whether there is a packed set. Raises StoreError where a store does not answer."""
        if location := location_of(path):
            return StoredSet(location).exists
        return (Path(path) / "dataset.json").is_file()

    @property
    def place(self) -> str:
        """The location, or the whole path of the folder: where any process finds it."""
        return self.name if self.store else str(self.path.resolve())

    @property
    def fingerprint(self) -> str:
        return str(self.description["fingerprint"])

    @property
    def classes(self) -> list[str]:
        return list(self.description["classes"])

    @property
    def codec(self) -> str:
        return str(self.description["storage"]["codec"])

    @property
    def eval_split(self) -> str | None:
        """The split for evaluation: val, or test where there is no val; None without either."""
        return next((name for name in ("val", "test") if self.images(name)), None)

    def images(self, split: str) -> int:
        return int(self.description["splits"].get(split, {}).get("images", 0))

    def split(self, name: str) -> SplitIndex:
        """The index of a split; raises BadRequest where there is no split of this name."""
        if name not in self.description["splits"]:
            known = ", ".join(self.description["splits"])
            raise BadRequest(f"{self.name} has no split called '{name}': it has {known}")
        facts, shards = self.description["splits"][name], self.shards(name)
        classes = len(self.classes)
        if isinstance(shards, ShardTable):
            row_files, source = self._parted_files(name, shards)
            rows: SplitRows = PartedRows(shards, facts, classes, self.codec, row_files)
        else:
            index, source = self._whole_files(name, facts)
            rows = WholeRows(index, facts, classes, self.codec)
        return SplitIndex(name, self.codec, shards, rows, source)

    def shards(self, name: str) -> ShardList:
        """The shards of a split. Raises StokerError where their table cannot be read or used."""
        facts = self.description["splits"][name]
        if not is_parted(facts):
            shards: list[Facts] = facts["shards"]
            return shards
        if name not in self._tables:
            self._tables[name] = self._shard_table(name, facts)
        return self._tables[name]

    def _shard_table(self, name: str, facts: dict[str, Any]) -> ShardTable:
        place = f"{self.name}/{name}/{TABLE}"
        try:
            if self.store:
                data = self.store.table(f"{name}/{TABLE}", facts["shards_sha256"])
            else:
                with open_plain(self.path / name / TABLE) as file:
                    data = file.read()
            if hashlib.sha256(data).hexdigest() != facts["shards_sha256"]:
                raise Damaged(place, "its hash is not the one in dataset.json")
            return ShardTable(pa.py_buffer(data), facts)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise Damaged(place, error) from error

    def _parted_files(self, name: str, table: ShardTable) -> tuple[RowFiles, Shards]:
        if self.store:
            return self.store.parted_split(name, table)
        return FolderRows(self.path / name, table), FolderShards(self.path / name, table)

    def _whole_files(self, name: str, facts: dict[str, Any]) -> tuple[Path, Shards]:
        if self.store:
            return self.store.split(name, facts)
        folder = self.path / name
        return folder / "index.parquet", FolderShards(folder, facts["shards"])


class SplitRows(Protocol):
    """The rows of a split's index."""

    @property
    def has_hashes(self) -> bool: ...

    @property
    def largest(self) -> tuple[int, int]:
        """Bytes of the largest stored image, and pixels of the largest one."""

    @property
    def mean_bytes(self) -> float:
        """Of a stored image."""

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """The images of each class."""

    @property
    def even_side(self) -> int:
        """The side of the images, where all are raw squares of one size at even distances; or 0."""

    def place_of(self, sample: int) -> tuple[int, int, int]:
        """The shard of a sample, and the offset and length of its bytes there."""

    def hash_of(self, sample: int) -> memoryview | None:
        """The first bytes of the SHA-256 of a sample's stored bytes; None where it has none."""

    def some_sizes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Widths and heights of all images, or of enough to stand for them."""

    def prepare(self, samples: NDArray[np.int64]) -> None:
        """Have the rows of some samples at hand. Raises StokerError."""

    def paths(self) -> Iterator[str]:
        """The original paths of all samples, as printable text."""

    def paths_of(self, samples: list[int]) -> list[str]:
        """The original paths of some samples. As `paths`, it raises StokerError where the index can
        no longer be read."""

    def close(self) -> None:
        """End what waits for a store."""


@dataclass(frozen=True)
class UnopenedShard:
    """A shard of which only parts can be read."""

    source: Shards
    number: int

    def read(self, into: memoryview, offset: int) -> int:
        return self.source.read(self.number, into, offset)


class SplitIndex:
    """The samples of one split, by number."""

    def __init__(
        self, name: str, codec: str, shards: ShardList, rows: SplitRows, source: Shards
    ) -> None:
        self.name, self.codec, self.shards, self.source = name, codec, shards, source
        self.shard_sizes, self.shard_bytes = sizes_of(shards)
        self.rows = rows
        column = columns_of(rows)
        self.shard, self.offset, self.length = column("shard"), column("offset"), column("length")
        self.labels, self.widths, self.heights = column("label"), column("width"), column("height")

    def __len__(self) -> int:
        return len(self.labels)

    def bytes_of(self, sample: int, into: bytearray | None = None) -> memoryview:
        """A sample's stored bytes, in `into` if given. Raises StokerError for a failed read."""
        number, offset, size = self.rows.place_of(sample)
        view = memoryview(bytearray(size) if into is None else into)[:size]
        try:
            opened = self.source.open(number)
            read = (opened or self._unopened(number)).read(view, offset)
        except OSError as error:
            raise StokerError(f"cannot read {self.origin_of(sample)}: {error}") from error
        if read != size:
            raise StokerError(f"{self.origin_of(sample)} ends early: {CHANGED}")
        return view

    def whole_shard(self, number: int, into: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """All bytes of a shard, at the start of `into` if it is large enough, else of a new buffer.
        Raises StokerError where they cannot be read."""
        opened = self.source.open(number, whole=True) or self._unopened(number)
        place, size = self.source.place(number), int(self.shards[number]["bytes"])
        if into is None or len(into) < size:
            into = np.empty(size, np.uint8)
        view, done = into.data[:size], 0
        try:
            while done < len(view) and (read := opened.read(view[done:], done)):
                done += read
        except OSError as error:
            raise StokerError(f"cannot read shard {place}: {error}") from error
        if done != size:
            raise StokerError(f"shard {place} ends early: {CHANGED}")
        return into

    def _unopened(self, number: int) -> UnopenedShard:
        return UnopenedShard(self.source, number)

    def gather(self, samples: NDArray[np.int64]) -> None:
        """Have samples at hand that this thread is about to read, from a store in few requests."""
        if not self.source.is_local:
            columns = (self.shard, self.offset, self.length)
            self.source.gather([*zip(*(c[samples].tolist() for c in columns), strict=True)])

    @property
    def is_parted(self) -> bool:
        """Whether the index is read in parts, as they are needed."""
        return isinstance(self.rows, PartedRows)

    @property
    def largest(self) -> tuple[int, int]:
        """Bytes of the largest stored image, and of the largest decoded one."""
        stored_bytes, pixels = self.rows.largest
        return stored_bytes, 3 * pixels

    def origin_of(self, sample: int) -> str:
        """The shard, offset and original path of a sample, for messages."""
        shard = self.source.place(int(self.shard[sample]))
        (path,) = self.rows.paths_of([sample])
        return f"{shard} at byte {int(self.offset[sample])} (from {path})"

    def close(self) -> None:
        """End what runs in the background."""
        self.rows.close()
        self.source.close()


def columns_of(rows: SplitRows) -> Callable[[str], Any]:
    """The columns of an index, by name."""
    if isinstance(rows, PartedRows):
        return partial(PartedColumn, rows)
    assert isinstance(rows, WholeRows)
    return partial(getattr, rows.index)
