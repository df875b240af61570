"""The images of a split as its index lists them, shard by shard, for `stoker verify`.

Invariants: an index that cannot be used lists no images, and says why. That of a large split is
read with its shards, so that memory holds the rows of the shards that are being read.
"""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.data.image_hashes import ByteCounter, Rows, Unreadable
from stoker.data.index.parted_rows import row_trouble
from stoker.data.index.read import Index, contradictions, read_index
from stoker.data.index.shard_table import ShardTable
from stoker.data.set_files import SetFiles
from stoker.text import one_line, shown

NAMES = ["key", "path"]


class NoImages(Exception):
    """Why an index, or the rows of a shard, cannot be used."""


class ListedImages(Protocol):
    """The images of a split."""

    def rows(self, number: int, counter: ByteCounter) -> Rows:
        """The images of a shard; what is read for it is counted. Raises NoImages."""

    def names(self, number: int) -> pa.Table:
        """Key and path of the images of a shard whose rows were read."""

    def place(self, number: int) -> str:
        """The table that lists the images of a shard, within the set."""


class WholeImages:
    """The images that an index in one file lists; 40 bytes of memory an image. Raises NoImages."""

    def __init__(self, files: SetFiles, split: str, description: dict[str, Any]) -> None:
        self._files, self._name = files, f"{split}/index.parquet"
        shards, classes = description["splits"][split]["shards"], len(description["classes"])
        try:
            self._index = read_index(files.path_of(self._name))
            codec = description["storage"]["codec"]
            texts = contradictions(self._index, shards, classes, codec)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise NoImages(*unusable(error)) from error
        if texts:
            raise NoImages(*texts)
        edges = np.cumsum([0, *(shard["images"] for shard in shards)])
        self._edges = edges.astype(int).tolist()

    @property
    def has_hashes(self) -> bool:
        return self._index.hashes is not None

    def rows(self, number: int, counter: ByteCounter) -> Rows:
        return rows_of(self._index, self._edges[number], self._edges[number + 1])

    def names(self, number: int) -> pa.Table:
        first, end = self._edges[number], self._edges[number + 1]
        names = pq.read_table(self._files.path_of(self._name), columns=NAMES)
        return names.slice(first, end - first)

    def place(self, number: int) -> str:
        return self._name


class PartedImages:
    """The images that the rows of each shard list."""

    def __init__(
        self, files: SetFiles, split: str, table: ShardTable, description: dict[str, Any]
    ) -> None:
        self._files, self._split, self._table = files, split, table
        self._facts, self._classes = description["splits"][split], len(description["classes"])
        self._codec = description["storage"]["codec"]

    def rows(self, number: int, counter: ByteCounter) -> Rows:
        data = self._read(number)
        counter.add(len(data))
        try:
            index = read_index(pa.BufferReader(data))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise NoImages(*unusable(error)) from error
        shard, facts = self._table[number], self._facts
        if trouble := row_trouble(index, number, shard, facts, self._classes, self._codec):
            raise NoImages(trouble)
        return rows_of(index, 0, len(index.label))

    def _read(self, number: int) -> bytes:
        """The bytes of a file with the rows of a shard. Raises NoImages."""
        file, data = self._table.rows_file(number), bytearray()

        def take(block: memoryview) -> None:
            if len(data) + len(block) > file.bytes:
                raise Unreadable("damaged: it is longer than shards.parquet states")
            data.extend(block)

        try:
            self._files.read(self.place(number), take)
        except Unreadable as error:
            raise NoImages(str(error)) from error
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise NoImages("damaged: its hash is not the one in shards.parquet")
        return bytes(data)

    def names(self, number: int) -> pa.Table:
        return pq.read_table(pa.BufferReader(self._read(number)), columns=NAMES)

    def place(self, number: int) -> str:
        return f"{self._split}/{self._table.rows_file(number).name}"


def unusable(error: Exception) -> list[str]:
    return [f"cannot be read as an index: {shown(one_line(str(error)))}"]


def rows_of(index: Index, first: int, end: int) -> Rows:
    return Rows(
        index.offset[first:end].tolist(),
        index.length[first:end].tolist(),
        [bytes(index.hash_of(row) or b"") for row in range(first, end)],
    )
