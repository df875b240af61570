"""Opening a packed set: the description, the index of a split, the bytes of a sample.

Invariants: files are opened read-only and never written. They are read, not mapped into memory: a
disk that fails raises an error that names the file, instead of a signal, and memory does not grow
with the set. A set without its committed description does not open. Sample number i is row i of the
split's index; rows are in shard order.
"""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
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
from stoker.errors import BadRequest, StokerError, is_readable
from stoker.faults import reach
from stoker.text import one_line, shown

SHARDS_OPEN = 400
"""Below the usual limit of 1024 open files, and more than the readers of a loader need."""
CHANGED = "it was changed after packing: remove the set, then pack again with 'stoker pack'"


class Damaged(StokerError):
    """A file of a set that cannot be used, and why."""

    def __init__(self, path: Path, cause: object) -> None:
        self.cause = shown(one_line(str(cause))) or "unreadable"
        super().__init__(
            f"{path} is damaged ({self.cause}): remove the set, then pack again with 'stoker pack'"
        )


class OpenShard:
    """A shard that is open for reading; closed when no thread refers to it any more."""

    handle = -1

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_RDONLY)
        self.size = os.fstat(self.handle).st_size

    def read(self, into: memoryview, offset: int) -> int:
        reach("read")
        return os.preadv(self.handle, [into], offset)

    def __del__(self) -> None:
        if self.handle >= 0:
            os.close(self.handle)


class Dataset:
    """A packed set. Raises BadRequest where the folder is none, StokerError where it is damaged."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        file = self.path / "dataset.json"
        try:
            self.description: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise BadRequest(
                f"{self.path} is not a packed set (it has no dataset.json): pack it with "
                f"'stoker pack {self.path}'"
            ) from error
        except (ValueError, RecursionError) as error:
            raise Damaged(file, error) from error
        if not isinstance(self.description, dict):
            raise Damaged(file, "it is not a JSON object")
        number = self.description.get("format")
        if not is_readable(self.path, number, FORMAT):
            raise Damaged(file, f"its format is {number!r}")
        if not seal_holds(self.description):
            raise Damaged(file, "its content does not match its digest")
        if trouble := description_trouble(self.description):
            raise Damaged(file, trouble)

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
        """The split for evaluation: val, or test where there is no val; None without either."""
        return next((name for name in ("val", "test") if self.images(name)), None)

    def images(self, split: str) -> int:
        return int(self.description["splits"].get(split, {}).get("images", 0))

    def split(self, name: str) -> SplitIndex:
        """The index of a split; raises BadRequest where there is no split of this name."""
        if name not in self.description["splits"]:
            known = ", ".join(self.description["splits"])
            raise BadRequest(f"{self.path} has no split called '{name}': it has {known}")
        return SplitIndex(
            self.path / name, self.description["splits"][name], self.codec, len(self.classes)
        )


class SplitIndex:
    """The samples of one split, by number."""

    def __init__(self, folder: Path, description: dict[str, Any], codec: str, classes: int) -> None:
        self.folder, self.codec = folder, codec
        self.shards: list[dict[str, Any]] = description["shards"]
        self.shard_sizes = np.array([shard["images"] for shard in self.shards], dtype=np.int64)
        file = folder / "index.parquet"
        try:
            index = read_index(file)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise Damaged(file, error) from error
        if sha256_file(file) != description["index_sha256"]:
            raise Damaged(file, "its hash is not the one in dataset.json")
        if texts := contradictions(index, description, classes, codec):
            raise Damaged(file, texts[0])
        self.shard, self.offset, self.length = index.shard, index.offset, index.length
        self.labels, self.widths, self.heights = index.label, index.width, index.height
        self.hashes = index.hashes
        self._opened: OrderedDict[int, OpenShard] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.labels)

    def bytes_of(self, sample: int, into: bytearray | None = None) -> memoryview:
        """A sample's stored bytes, in `into` if given. Raises StokerError for a failed read."""
        size = int(self.length[sample])
        view = memoryview(bytearray(size) if into is None else into)[:size]
        try:
            read = self.open_shard(int(self.shard[sample])).read(view, int(self.offset[sample]))
        except OSError as error:
            raise StokerError(f"cannot read {self.origin_of(sample)}: {error}") from error
        if read != size:
            raise StokerError(f"{self.origin_of(sample)} ends early: {CHANGED}")
        return view

    def whole_shard(self, number: int, into: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
        """All bytes of a shard, at the start of `into` if it is large enough, else of a new buffer.
        Raises StokerError where they cannot be read."""
        opened = self.open_shard(number)
        path = self.folder / self.shards[number]["name"]
        if into is None or len(into) < opened.size:
            into = np.empty(opened.size, np.uint8)
        view, done = into.data[: opened.size], 0
        try:
            while done < len(view) and (read := opened.read(view[done:], done)):
                done += read
        except OSError as error:
            raise StokerError(f"cannot read shard {path}: {error}") from error
        if done != opened.size:
            raise StokerError(f"shard {path} ends early: {CHANGED}")
        return into

    @property
    def largest(self) -> tuple[int, int]:
        """Bytes of the largest stored image, and of the largest decoded one."""
        pixels = self.widths.astype(np.int64) * self.heights
        return int(self.length.max(initial=0)), 3 * int(pixels.max(initial=0))

    def open_shard(self, number: int) -> OpenShard:
        """A shard, open for reading. Raises StokerError where it is missing or of another size."""
        with self._lock:
            if number in self._opened:
                self._opened.move_to_end(number)
                return self._opened[number]
            path = self.folder / self.shards[number]["name"]
            try:
                opened = OpenShard(path)
            except OSError as error:
                raise StokerError(f"cannot read shard {path}: {error}") from error
            if opened.size != self.shards[number]["bytes"]:
                raise StokerError(
                    f"shard {path} has {opened.size} bytes, not {self.shards[number]['bytes']}: "
                    f"{CHANGED}"
                )
            self._opened[number] = opened
            if len(self._opened) > SHARDS_OPEN:
                self._opened.popitem(last=False)
            return opened

    def paths(self) -> pa.ChunkedArray:
        """The original path of each sample, as printable text."""
        return pq.read_table(self.folder / "index.parquet", columns=["path"]).column("path")

    def paths_of(self, samples: list[int]) -> list[str]:
        """The original paths of some samples. Raises OSError or pa.ArrowException where the index
        can no longer be read."""
        paths, first, wanted = dict[int, str](), 0, sorted(set(samples))
        with pq.ParquetFile(self.folder / "index.parquet") as index:
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
        shard = self.folder / self.shards[int(self.shard[sample])]["name"]
        return f"{shard} at byte {int(self.offset[sample])} (from {paths[sample].as_py()})"
