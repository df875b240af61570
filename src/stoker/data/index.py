"""Opening a packed set: the description, the index of a split, the bytes of a sample.

Invariants: files are mapped read-only and never written. A set without its committed description
does not open. Sample number i is row i of the split's index; rows are in shard order.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.commit import sha256_file
from stoker.errors import BadRequest, StokerError

SHARD_NAME = re.compile(r"\d{5,}\.tar")
MAPS_OPEN = 512
"""Shards mapped at once: far below the kernel's limit on maps, far above what lanes need."""


def damaged(path: Path, why: object) -> StokerError:
    first_line = str(why).splitlines()[0] if str(why) else "unreadable"
    return StokerError(f"{path} is damaged ({first_line}): pack again with 'stoker pack'")


class Dataset:
    """A packed set of images."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.description: dict[str, Any] = json.loads(
                (self.path / "dataset.json").read_text(encoding="utf-8")
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BadRequest(
                f"{self.path} is not a packed set (no dataset.json): stoker pack {self.path}"
            ) from error
        except ValueError as error:
            raise damaged(self.path / "dataset.json", error) from error
        if not isinstance(self.description, dict):
            raise damaged(self.path / "dataset.json", "not a description")
        if self.description.get("format") != 1:
            raise StokerError(
                f"{self.path} has format {self.description.get('format')}; this Stoker reads 1: "
                "pack again with 'stoker pack'"
            )

    @staticmethod
    def is_packed(path: str | os.PathLike[str]) -> bool:
        return (Path(path) / "dataset.json").is_file()

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
        """The split that accuracy is measured on: val, or test where there is no val."""
        for name in ("val", "test"):
            if self.images(name):
                return name
        return None

    def images(self, split: str) -> int:
        return int(self.description["splits"].get(split, {}).get("images", 0))

    def split(self, name: str) -> SplitIndex:
        if name not in self.description["splits"]:
            known = ", ".join(self.description["splits"])
            raise BadRequest(f"{self.path} has no split called '{name}': it has {known}")
        return SplitIndex(self.path / name, self.description["splits"][name], self.codec)


class SplitIndex:
    """The samples of one split, by number."""

    def __init__(self, folder: Path, description: dict[str, Any], codec: str) -> None:
        self.folder = folder
        self.codec = codec
        self.shards: list[dict[str, Any]] = description["shards"]
        for shard in self.shards:
            # A description from elsewhere must not lead out of its folder.
            if not SHARD_NAME.fullmatch(str(shard["name"])):
                raise damaged(folder.parent / "dataset.json", f"odd shard name {shard['name']!r}")
        self.shard_sizes = np.array([shard["images"] for shard in self.shards], dtype=np.int64)
        names = ["shard", "offset", "length", "label", "width", "height"]
        try:
            table = pq.read_table(folder / "index.parquet", columns=names)
        except (OSError, pa.ArrowException) as error:
            raise damaged(folder / "index.parquet", error) from error
        if sha256_file(folder / "index.parquet") != description["index_sha256"]:
            raise damaged(folder / "index.parquet", "its hash is not the description's")
        columns: dict[str, NDArray[Any]] = {name: table.column(name).to_numpy() for name in names}
        self.shard, self.offset, self.length = (columns[name] for name in names[:3])
        self.labels = columns["label"].astype(np.int64)
        self.widths, self.heights = columns["width"], columns["height"]
        if len(self.labels) != self.shard_sizes.sum():
            raise damaged(folder / "index.parquet", "it does not match dataset.json")
        self._maps: OrderedDict[int, mmap.mmap] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.labels)

    def bytes_of(self, sample: int) -> memoryview:
        """The stored bytes of a sample, without a copy."""
        start = int(self.offset[sample])
        view = memoryview(self._map(int(self.shard[sample])))
        return view[start : start + int(self.length[sample])]

    def _map(self, number: int) -> mmap.mmap:
        with self._lock:
            if number in self._maps:
                self._maps.move_to_end(number)
                return self._maps[number]
            path = self.folder / self.shards[number]["name"]
            try:
                with path.open("rb") as file:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise StokerError(f"cannot read shard {path}: {error}") from error
            if len(mapped) != self.shards[number]["bytes"]:
                raise StokerError(
                    f"shard {path} has {len(mapped)} bytes, not {self.shards[number]['bytes']}: "
                    "it was changed after packing; pack again"
                )
            self._maps[number] = mapped
            if len(self._maps) > MAPS_OPEN:
                # Dropped, not closed: a thread may still decode from it.
                self._maps.popitem(last=False)
            return mapped

    def place_of(self, sample: int) -> str:
        """Shard, offset and original path of a sample, for messages."""
        paths = pq.read_table(self.folder / "index.parquet", columns=["path"]).column("path")
        shard = self.folder / self.shards[int(self.shard[sample])]["name"]
        return f"{shard} at byte {int(self.offset[sample])} (from {paths[sample].as_py()})"
