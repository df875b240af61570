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
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from stoker.commit import json_bytes
from stoker.data.dataset import Dataset
from stoker.data.image_hashes import ByteCounter, HashedFile, Progress, Rows, hash_blocks
from stoker.data.index.description import Damaged, is_parted
from stoker.data.index.shard_table import (
    ShardList,
    ShardTable,
    bytes_in,
    has_numbered,
    rows_files,
    shard_names,
    split_table,
    table_sha256,
)
from stoker.data.listed_images import (
    ListedImages,
    NoImages,
    PartedImages,
    WholeImages,
)
from stoker.data.seal import CACHES, NEAR_SHA256, REJECTED_SHA256, is_sealed
from stoker.data.set_files import SetFiles, files_of
from stoker.locks.lock import LEASES
from stoker.stores.in_threads import in_threads
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
    number: int = 0
    """Of a shard."""
    images: ListedImages | None = None
    """Those of a shard; None for a table, and for a shard whose index is damaged."""


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
    tables, splits = tables_of(description), description["splits"]
    sizes = [files.size_of(table.name) for table in tables]
    counter = ByteCounter(progress, sum(sizes) + sum(map(bytes_in, splits.values())))
    intact = {table.name for table in tables if check_table(files, table, counter, report)}
    listed = [listed_split(files, split, description, intact, report) for split in splits]
    counter.total += sum(file.bytes for split in listed for file in rows_files(split.shards))
    report.images = sum(facts["images"] for facts in splits.values())
    report.shards = sum(len(split.shards) for split in listed)
    shards = (shard for split in listed for shard in split.files())
    check = partial(check_shard, files, listed, counter)

    def stop() -> None:
        counter.stopped = True
        files.stop()

    for problems in in_threads(check, shards, threads, stop):
        report.problems += problems
    report.bytes = counter.done


@dataclass(frozen=True)
class ListedSplit:
    """The shards of a split, and the images in them."""

    name: str
    shards: ShardList
    images: ListedImages | None

    def files(self) -> Iterator[File]:
        for number, shard in enumerate(self.shards):
            name = f"{self.name}/{shard['name']}"
            yield File(name, shard["sha256"], shard["bytes"], number, self.images)


def listed_split(
    files: SetFiles,
    split: str,
    description: dict[str, Any],
    intact: set[str],
    report: VerifyReport,
) -> ListedSplit:
    """What a split must hold; with problems in the report where its tables cannot be used. `intact`
    are the tables whose hashes match."""
    facts = description["splits"][split]
    name, shards = f"{split}/{split_table(facts)}", facts.get("shards", [])
    images: ListedImages | None = None
    try:
        if name in intact and is_parted(facts):
            shards = ShardTable(pa.py_buffer(files.path_of(name).read_bytes()), facts)
            images = PartedImages(files, split, shards, description)
        elif name in intact:
            whole = WholeImages(files, split, description)
            images = whole if whole.has_hashes else None
    except NoImages as error:
        report.problems += [Problem(name, text) for text in error.args]
    except (OSError, ValueError, pa.ArrowException) as error:
        text = f"cannot be read as a table of shards: {shown(one_line(str(error)))}"
        report.problems.append(Problem(name, text))
    return ListedSplit(split, shards, images)


def check_shard(
    files: SetFiles, listed: list[ListedSplit], counter: ByteCounter, shard: File
) -> list[Problem]:
    """The problems of a shard, and of the rows of the index that are its own."""
    problems, rows = list[Problem](), None
    try:
        rows = shard.images.rows(shard.number, counter) if shard.images else None
    except NoImages as error:
        assert shard.images is not None
        problems = [Problem(shard.images.place(shard.number), text) for text in error.args]
    content = hashed(files, shard, rows, counter)
    return problems + shard_problems(shard, rows, content, listed)


def hashed(files: SetFiles, file: File, rows: Rows | None, counter: ByteCounter) -> HashedFile:
    """The hashes of a file of the set."""
    return hash_blocks(partial(files.read, file.name), rows, counter)


def tables_of(description: dict[str, Any]) -> list[File]:
    """The tables whose hashes the description holds."""
    tables = [
        File(f"{split}/{split_table(facts)}", table_sha256(facts))
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


def shard_problems(
    shard: File, rows: Rows | None, content: HashedFile, listed: list[ListedSplit]
) -> list[Problem]:
    """The problems of a shard: one for the whole file, or one for each damaged image."""
    if content.trouble is not None:
        return [Problem(shard.name, content.trouble)]
    if content.sha256 == shard.sha256 and not content.bad:
        return []
    others = (file for split in listed for file in split.files())
    owner = next((file.name for file in others if file.sha256 == content.sha256), None)
    if owner and content.sha256 != shard.sha256:
        return [Problem(shard.name, f"holds the bytes of {owner}")]
    problems = []
    if content.bytes != shard.bytes:
        problems.append(Problem(shard.name, f"has {content.bytes:,} bytes, not {shard.bytes:,}"))
    if rows is None:
        text = "damaged; the images cannot be named, because its index is damaged too"
        return problems or [Problem(shard.name, text)]
    problems += image_problems(shard, rows, content)
    text = "damaged outside the images: a header, a label or padding of the tar"
    return problems or [Problem(shard.name, text)]


def image_problems(shard: File, rows: Rows, content: HashedFile) -> list[Problem]:
    """The damaged images of a shard, each with its key, its offset and its original path."""
    if not content.bad:
        return []
    assert shard.images is not None
    names, problems = shard.images.names(shard.number), []
    for row in content.bad[:MOST_NAMED]:
        key, path = (names.column(name)[row].as_py() for name in ("key", "path"))
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
        if not is_parted(facts):
            listed |= {f"{split}/{name}" for name in shard_names(facts)}
    names = files.names()
    if names is None:
        report.notes.append(f"{files.obstacle}: others were not searched for")
        return
    others = []
    for name in names:
        split, _, file = name.partition("/")
        if name in listed or has_numbered(description["splits"].get(split, {}), file):
            continue
        if name.endswith((".tar", ".parquet")) and not name.startswith(".parts/"):
            report.problems.append(Problem(name, "not in dataset.json"))
        elif not name.startswith(f"{LEASES}/"):
            others.append(name)
    if others:
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        report.notes.append(f"not part of the set: {others[0]}{more}")
