"""Images that a large set has more than once, found without all hashes in memory.

Invariant: the pixel hashes are first sorted into files by their first byte, so that equal ones are
in the same file; memory then holds one of BUCKETS files at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.data.packing.duplicates import pixel_hashes, with_repeated

BUCKETS = 256
"""A set of a billion images has files of 62 MB."""
NEEDED = ["pixels", "label", "path"]


def accepted(path: Path, columns: list[str]) -> pa.Table:
    """Some columns of the part of a shard, without the rejected images."""
    part = pq.read_table(path, columns=[*columns, "reason"]).replace_schema_metadata(None)
    return part.filter(part.column("reason").is_null()).select(columns)


def repeated_hashes(paths: Iterable[Path], scratch: Path) -> NDArray[np.void]:
    """The pixel hashes that occur more than once in some parts. Files are made in `scratch` and
    removed again."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        files = [Path(name) / str(number) for number in range(BUCKETS)]
        sort_hashes((pixel_hashes(accepted(path, ["pixels"])) for path in paths), files)
        repeats = [repeats_in(np.fromfile(file, "V16")) for file in files]
    return np.concatenate(repeats)


def sort_hashes(parts: Iterator[NDArray[np.void]], files: list[Path]) -> None:
    """Write each hash into the file of its first byte."""
    with ExitStack() as stack:
        opened = [stack.enter_context(file.open("wb")) for file in files]
        for hashes in parts:
            firsts = hashes.view(np.uint8).reshape(len(hashes), -1)[:, 0]
            order = np.argsort(firsts, kind="stable")
            ends = np.cumsum(np.bincount(firsts, minlength=BUCKETS))[:-1]
            for file, some in zip(opened, np.split(hashes[order], ends), strict=True):
                some.tofile(file)


def repeats_in(hashes: NDArray[np.void]) -> NDArray[np.void]:
    distinct, times = np.unique(hashes, return_counts=True)
    return distinct[times > 1]


def repeated_rows(paths: Iterable[Path], repeated: NDArray[np.void]) -> pa.Table:
    """The rows of some parts whose pixel hash is one of these."""
    some = [with_repeated({"": accepted(path, NEEDED)}, repeated)[""] for path in paths]
    return pa.concat_tables(some)
