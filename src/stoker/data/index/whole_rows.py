"""The index of a split in one file, all of it in memory: that of every set but large ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.commit import sha256_file
from stoker.data.index.description import Damaged
from stoker.data.index.read import contradictions, even_side, read_index
from stoker.errors import StokerError
from stoker.text import one_line


class WholeRows:
    """The rows of an index. Raises Damaged where it cannot be used."""

    def __init__(self, file: Path, facts: dict[str, Any], classes: int, codec: str) -> None:
        self.file, self._classes, self._codec = file, classes, codec
        try:
            self.index = read_index(file)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise Damaged(file, error) from error
        if sha256_file(file) != facts["index_sha256"]:
            raise Damaged(file, "its hash is not the one in dataset.json")
        if texts := contradictions(self.index, facts["shards"], classes, codec):
            raise Damaged(file, texts[0])

    @property
    def has_hashes(self) -> bool:
        return self.index.hashes is not None

    def place_of(self, sample: int) -> tuple[int, int, int]:
        index = self.index
        return int(index.shard[sample]), int(index.offset[sample]), int(index.length[sample])

    def hash_of(self, sample: int) -> memoryview | None:
        return self.index.hash_of(sample)

    @cached_property
    def largest(self) -> tuple[int, int]:
        pixels = self.index.width.astype(np.int64) * self.index.height
        return int(self.index.length.max(initial=0)), int(pixels.max(initial=0))

    @property
    def mean_bytes(self) -> float:
        return float(self.index.length.mean())

    @cached_property
    def class_counts(self) -> NDArray[np.int64]:
        return np.bincount(self.index.label, minlength=self._classes).astype(np.int64)

    @cached_property
    def even_side(self) -> int:
        return even_side(self.index, self._codec)

    def some_sizes(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return self.index.width, self.index.height

    def prepare(self, samples: NDArray[np.int64]) -> None:
        """All rows are here."""

    def paths(self) -> Iterator[str]:
        for column in self._path_columns():
            yield from column.to_pylist()

    def paths_of(self, samples: list[int]) -> list[str]:
        paths, first, wanted = dict[int, str](), 0, sorted(set(samples))
        for column in self._path_columns():
            begin, end = np.searchsorted(wanted, [first, first + len(column)])
            for sample in wanted[begin:end]:
                paths[sample] = str(column[sample - first].as_py())
            first += len(column)
        return [paths[sample] for sample in samples]

    def _path_columns(self) -> Iterator[pa.Array]:
        """The paths in parts: those of millions of images are more than anything else in memory."""
        try:
            with pq.ParquetFile(self.file) as index:
                for part in index.iter_batches(columns=["path"]):
                    yield part.column(0)
        except (OSError, pa.ArrowException) as error:
            raise StokerError(f"cannot read {self.file}: {one_line(str(error))}") from error

    def close(self) -> None:
        pass
