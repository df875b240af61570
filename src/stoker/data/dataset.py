"""Opening a packed set: the description, the index of a split, the bytes of a sample.

Invariants: files are opened read-only and never written, and memory does not grow with the shards.
A set without its committed description does not open. Sample number i is row i of the split's
index; rows are in shard order. A set in an object store or on a web server is opened like one in a
folder: its index and its shards come through the cache of this machine.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.commit import sha256_file
from stoker.data.description import description_trouble
from stoker.data.index import contradictions, read_index
from stoker.data.seal import FORMAT, seal_holds
from stoker.data.shards import CHANGED, FolderShards, Shards
from stoker.data.stored_set import StoredSet
from stoker.errors import BadRequest, StokerError, is_readable
from stoker.stores.location import location_of
from stoker.stores.objects import Missing
from stoker.text import one_line, shown


class Damaged(StokerError):
    """A file of a set that cannot be used, and why."""

    def __init__(self, path: object, cause: object) -> None:
        self.cause = shown(one_line(str(cause))) or "unreadable"
        super().__init__(
            f"{path} is damaged ({self.cause}): remove the set, then pack again with 'stoker pack'"
        )


class Dataset:
    """A packed set. Raises BadRequest where the folder is none, StokerError where it is damaged."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        location = location_of(path)
        self.store = StoredSet(location) if location else None
        self.path = Path(path)
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
        return (self.path / "dataset.json").read_text(encoding="utf-8")

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
        facts = self.description["splits"][name]
        if self.store:
            index, shards = self.store.split(name, facts)
            return SplitIndex(name, facts, self.codec, len(self.classes), index, shards)
        folder = self.path / name
        index, files = folder / "index.parquet", FolderShards(folder, facts["shards"])
        return SplitIndex(name, facts, self.codec, len(self.classes), index, files)


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
        self,
        name: str,
        description: dict[str, Any],
        codec: str,
        classes: int,
        index_file: Path,
        source: Shards,
    ) -> None:
        self.name, self.codec, self.source = name, codec, source
        self.shards: list[dict[str, Any]] = description["shards"]
        self.shard_sizes = np.array([shard["images"] for shard in self.shards], dtype=np.int64)
        self.index_file = index_file
        try:
            index = read_index(index_file)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise Damaged(index_file, error) from error
        if sha256_file(index_file) != description["index_sha256"]:
            raise Damaged(index_file, "its hash is not the one in dataset.json")
        if texts := contradictions(index, description, classes, codec):
            raise Damaged(index_file, texts[0])
        self.shard, self.offset, self.length = index.shard, index.offset, index.length
        self.labels, self.widths, self.heights = index.label, index.width, index.height
        self.hashes = index.hashes

    def __len__(self) -> int:
        return len(self.labels)

    def bytes_of(self, sample: int, into: bytearray | None = None) -> memoryview:
        """A sample's stored bytes, in `into` if given. Raises StokerError for a failed read."""
        size = int(self.length[sample])
        view = memoryview(bytearray(size) if into is None else into)[:size]
        try:
            number, offset = int(self.shard[sample]), int(self.offset[sample])
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
    def largest(self) -> tuple[int, int]:
        """Bytes of the largest stored image, and of the largest decoded one."""
        pixels = self.widths.astype(np.int64) * self.heights
        return int(self.length.max(initial=0)), 3 * int(pixels.max(initial=0))

    def paths(self) -> pa.ChunkedArray:
        """The original path of each sample, as printable text."""
        return pq.read_table(self.index_file, columns=["path"]).column("path")

    def paths_of(self, samples: list[int]) -> list[str]:
        """The original paths of some samples. Raises OSError or pa.ArrowException where the index
        can no longer be read."""
        paths, first, wanted = dict[int, str](), 0, sorted(set(samples))
        with pq.ParquetFile(self.index_file) as index:
            # In parts: the paths of millions of images are more than anything else in memory.
            for part in index.iter_batches(columns=["path"]):
                begin, end = np.searchsorted(wanted, [first, first + len(part)])
                for sample in wanted[begin:end]:
                    paths[sample] = str(part.column(0)[sample - first].as_py())
                first += len(part)
        return [paths[sample] for sample in samples]

    def origin_of(self, sample: int) -> str:
        """The shard, offset and original path of a sample, for messages."""
        paths = self.paths()
        shard = self.source.place(int(self.shard[sample]))
        return f"{shard} at byte {int(self.offset[sample])} (from {paths[sample].as_py()})"
