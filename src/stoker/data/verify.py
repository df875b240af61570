"""Whether a packed set is still as it was packed: every hash is computed again.

Invariants: files are only read, in blocks, whatever their size and wherever they are. A shard is
read once and hashed as a whole and image by image in the same pass, so damage is reported by image.
A problem names the file that is damaged: where the description is damaged nothing else is checked
against it, and where an index is damaged no image is named from it. A store that fails is no
damage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.commit import json_bytes
from stoker.data.dataset import Damaged, Dataset
from stoker.data.image_hashes import ByteCounter, HashedFile, Progress, Rows, hash_blocks
from stoker.data.index import Index, contradictions, read_index
from stoker.data.seal import CACHES, NEAR_SHA256, REJECTED_SHA256, is_sealed
from stoker.data.set_files import SetFiles, files_of
from stoker.text import one_line, shown

MOST_NAMED = 10
"""Images of one shard that are named one by one."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one file, which is named by its path within the set."""

    file: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}: {self.text}"


@dataclass
class VerifyReport:
    images: int = 0
    shards: int = 0
    bytes: int = 0
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Observations that are no damage."""


@dataclass(frozen=True)
class File:
    """One file to be read, with the facts that the description states about it."""

    name: str
    sha256: str
    bytes: int | None = None
    rows: Callable[[], Rows] | None = None
    """The images of a shard; None for a table, and for a shard whose index is damaged."""


def verify(
    path: str | os.PathLike[str], *, threads: int = 0, progress: Progress | None = None
) -> VerifyReport:
    """Compare a whole set, in a folder or at a location, with its description; 0 threads: one for
    each core, and more for a store. Raises BadRequest where it is not a packed set, and StoreError
    where a store fails."""
    start = time.monotonic()
    report = VerifyReport()
    try:
        description = read_description(path)
    except Damaged as error:
        text = f"damaged ({error.cause}); nothing else can be checked"
        report.problems.append(Problem("dataset.json", text))
    else:
        if not is_sealed(description):
            names = "dataset.json and rejected.parquet"
            report.notes.append(f"{names} were packed without hashes of their own: not checked")
        with closing(files_of(path)) as files:
            check_files(files, description, report, threads or files.threads, progress)
            check_other_files(files, description, report)
    report.seconds = time.monotonic() - start
    return report


def read_description(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The description of a set. Raises BadRequest where there is none, Damaged where it is."""
    dataset = Dataset(path)
    with closing(files_of(path)) as files:
        # The seal covers the values, not how they are written: 1e-5 and 1E-5 are the same value.
        if json_bytes(dataset.description) != files.description():
            raise Damaged(f"{dataset.name}/dataset.json", "it is not written as packing writes it")
    return dataset.description


def check_files(
    files: SetFiles,
    description: dict[str, Any],
    report: VerifyReport,
    threads: int,
    progress: Progress | None,
) -> None:
    """Check the tables first, because the indexes list the images; then the shards, in threads."""
    tables = tables_of(description)
    sizes = [files.size_of(table.name) for table in tables]
    splits = description["splits"].items()
    sizes += [shard["bytes"] for _, facts in splits for shard in facts["shards"]]
    counter = ByteCounter(progress, sum(sizes))
    intact = {table.name for table in tables if check_table(files, table, counter, report)}
    shards = []
    for split, facts in splits:
        intact_index = f"{split}/index.parquet" in intact
        index = checked_rows(files, split, description, report) if intact_index else None
        for number, shard in enumerate(facts["shards"]):
            rows = partial(index.rows, number) if index is not None else None
            shards.append(File(f"{split}/{shard['name']}", shard["sha256"], shard["bytes"], rows))
        report.images += facts["images"]
    report.shards = len(shards)
    owners = {shard.sha256: shard.name for shard in shards}
    pool = ThreadPoolExecutor(threads, "stoker-verify")
    try:
        contents = pool.map(
            lambda shard: hashed(files, shard, shard.rows and shard.rows(), counter), shards
        )
        for shard, content in zip(shards, contents, strict=True):
            report.problems += shard_problems(files, shard, content, owners)
    except BaseException:
        files.stop()
        raise
    finally:
        counter.stopped = True
        pool.shutdown(cancel_futures=True)
    report.bytes = counter.done


def hashed(files: SetFiles, file: File, rows: Rows | None, counter: ByteCounter) -> HashedFile:
    """The hashes of a file of the set."""
    return hash_blocks(partial(files.read, file.name), rows, counter)


def tables_of(description: dict[str, Any]) -> list[File]:
    """The tables whose hashes the description holds."""
    tables = [
        File(f"{split}/index.parquet", facts["index_sha256"])
        for split, facts in description["splits"].items()
    ]
    if is_sealed(description):
        tables.append(File("rejected.parquet", str(description.get(REJECTED_SHA256))))
    if NEAR_SHA256 in description:
        tables.append(File("near_duplicates.parquet", str(description[NEAR_SHA256])))
    return tables


def check_table(files: SetFiles, table: File, counter: ByteCounter, report: VerifyReport) -> bool:
    """Whether a table is the one that was packed; adds a problem where it is not."""
    content = hashed(files, table, None, counter)
    if content.trouble is None and content.sha256 == table.sha256:
        return True
    text = content.trouble or "damaged: its hash is not the one in dataset.json"
    report.problems.append(Problem(table.name, text))
    return False


class ShardRows:
    """The images of a split, by shard; 40 bytes of memory an image."""

    def __init__(self, index: Index, sizes: list[int]) -> None:
        self._index = index
        self._edges = np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist()

    def rows(self, number: int) -> Rows:
        first, end = self._edges[number], self._edges[number + 1]
        return Rows(
            first,
            self._index.offset[first:end].tolist(),
            self._index.length[first:end].tolist(),
            [bytes(self._index.hash_of(row) or b"") for row in range(first, end)],
        )


def checked_rows(
    files: SetFiles, split: str, description: dict[str, Any], report: VerifyReport
) -> ShardRows | None:
    """The images of a split; None, and problems in the report, where its index cannot be used."""
    name, facts = f"{split}/index.parquet", description["splits"][split]
    try:
        index = read_index(files.path_of(name))
        codec = description["storage"]["codec"]
        texts = contradictions(index, facts, len(description["classes"]), codec)
    except (OSError, ValueError, pa.ArrowException) as error:
        texts = [f"cannot be read as an index: {shown(one_line(str(error)))}"]
    report.problems += [Problem(name, text) for text in texts]
    if texts or index.hashes is None:
        return None
    return ShardRows(index, [shard["images"] for shard in facts["shards"]])


def shard_problems(
    files: SetFiles, shard: File, content: HashedFile, owners: dict[str, str]
) -> list[Problem]:
    """The problems of a shard: one for the whole file, or one for each damaged image."""
    if content.trouble is not None:
        return [Problem(shard.name, content.trouble)]
    if content.sha256 == shard.sha256 and not content.bad:
        return []
    if content.sha256 in owners and content.sha256 != shard.sha256:
        return [Problem(shard.name, f"holds the bytes of {owners[content.sha256]}")]
    problems = []
    if content.bytes != shard.bytes:
        problems.append(Problem(shard.name, f"has {content.bytes:,} bytes, not {shard.bytes:,}"))
    if shard.rows is None:
        text = "damaged; the images cannot be named, because its index is damaged too"
        return problems or [Problem(shard.name, text)]
    problems += image_problems(files, shard, shard.rows(), content)
    text = "damaged outside the images: a header, a label or padding of the tar"
    return problems or [Problem(shard.name, text)]


def image_problems(files: SetFiles, shard: File, rows: Rows, content: HashedFile) -> list[Problem]:
    """The damaged images of a shard, each with its key, its offset and its original path."""
    if not content.bad:
        return []
    index = f"{shard.name.rpartition('/')[0]}/index.parquet"
    names = pq.read_table(files.path_of(index), columns=["key", "path"])
    problems = []
    for row in content.bad[:MOST_NAMED]:
        key, path = (names.column(name)[rows.first + row].as_py() for name in ("key", "path"))
        cut_off = rows.offset[row] + rows.length[row] > content.bytes
        state = "is cut off" if cut_off else "is damaged"
        text = f"image {key} at byte {rows.offset[row]} {state} (from {path})"
        problems.append(Problem(shard.name, text))
    if (more := len(content.bad) - MOST_NAMED) > 0:
        problems.append(Problem(shard.name, f"and {more:,} more images of it"))
    return problems


def check_other_files(files: SetFiles, description: dict[str, Any], report: VerifyReport) -> None:
    """Report unlisted files: shards and tables, which readers would read, as problems; or notes."""
    listed = {"dataset.json", "rejected.parquet", *CACHES}
    listed |= {table.name for table in tables_of(description)}
    for split, facts in description["splits"].items():
        listed |= {f"{split}/{shard['name']}" for shard in facts["shards"]}
    names = files.names()
    if names is None:
        report.notes.append("a web server does not list its files: others were not searched for")
        return
    others = []
    for name in names:
        if name in listed:
            continue
        if name.endswith((".tar", ".parquet")) and not name.startswith(".parts/"):
            report.problems.append(Problem(name, "not in dataset.json"))
        else:
            others.append(name)
    if others:
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        report.notes.append(f"not part of the set: {others[0]}{more}")
