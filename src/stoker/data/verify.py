"""Whether a packed set is still what was packed: every hash recomputed, every damage named.

Invariants: files are opened read-only and read in blocks, whatever their size. A shard is read once
and hashed as a whole and image by image in the same pass: damage is named by the image it hit. A
problem names the file that is wrong, not the one that told of it: behind a description that does
not hold nothing else is judged, and behind a damaged index no image is named.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.commit import json_bytes
from stoker.data.columns import numbers
from stoker.data.dataset import SHARD_NAME, Dataset
from stoker.data.image_hashes import HashedFile, Pace, Progress, Rows, look_at
from stoker.data.seal import ALIKE, SOURCE_CACHE, WALK_CACHE, is_sealed, seal_holds
from stoker.host.limits import usable_cores

MOST_NAMED = 10
"""Images of one shard that are named one by one."""
COLUMNS = ["shard", "offset", "length", "hash"]
SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one file."""

    file: str
    """Within the set."""
    words: str

    def __str__(self) -> str:
        return f"{self.file}: {self.words}"


@dataclass
class VerifyReport:
    """What was found."""

    images: int = 0
    shards: int = 0
    bytes: int = 0
    seconds: float = 0.0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is odd and no damage."""


@dataclass(frozen=True)
class File:
    """One file to be read, and what the description says of it."""

    name: str
    sha256: str
    bytes: int | None = None
    rows: Callable[[], Rows] | None = None


def verify(
    path: str | os.PathLike[str], *, threads: int = 0, progress: Progress | None = None
) -> VerifyReport:
    """Read the whole set and compare."""
    began = time.monotonic()
    root, verdict = Path(path), VerifyReport()
    description = read_description(root)
    if description is None:
        words = "damaged; nothing else can be judged without it"
        verdict.problems.append(Problem("dataset.json", words))
    else:
        if not is_sealed(description):
            files = "dataset.json and rejected.parquet"
            verdict.notes.append(f"{files} were packed without hashes of their own: not checked")
        read_files(root, description, verdict, threads or usable_cores(), progress)
        look_for_strangers(root, description, verdict)
    verdict.seconds = time.monotonic() - began
    return verdict


def read_description(root: Path) -> dict[str, Any] | None:
    """The description, or None where it is damaged."""
    try:
        written = (root / "dataset.json").read_bytes()
        said = json.loads(written.decode())
        # The seal covers what is said, not how: 1e-5 and 1E-5 say the same.
        if not isinstance(said, dict) or not seal_holds(said) or json_bytes(said) != written:
            return None
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (ValueError, RecursionError):
        return None
    description = Dataset(root).description
    try:
        sane = all(is_sane(split, facts) for split, facts in description["splits"].items())
    except (KeyError, TypeError, AttributeError):
        return None
    return description if sane else None


def is_sane(split: str, facts: dict[str, Any]) -> bool:
    """Whether a split is described as we describe one; a name must not lead out of the set."""
    counts = [shard[word] for shard in facts["shards"] for word in ("images", "bytes")]
    hashes = [facts["index_sha256"], *(shard["sha256"] for shard in facts["shards"])]
    return (
        split in SPLITS
        and all(isinstance(count, int) and count >= 0 for count in counts)
        and facts["images"] == sum(shard["images"] for shard in facts["shards"])
        and all(isinstance(digest, str) for digest in hashes)
        and all(SHARD_NAME.fullmatch(shard["name"]) for shard in facts["shards"])
    )


def read_files(
    root: Path,
    description: dict[str, Any],
    verdict: VerifyReport,
    threads: int,
    progress: Progress | None,
) -> None:
    """Hash tables first, for they say where the images lie; then the shards, side by side."""
    tables = [
        File(f"{split}/index.parquet", facts["index_sha256"])
        for split, facts in description["splits"].items()
    ]
    if is_sealed(description):
        tables.append(File("rejected.parquet", str(description.get("rejected_sha256"))))
    if ALIKE in description:
        tables.append(File("near_duplicates.parquet", str(description[ALIKE])))
    sizes = [path.stat().st_size for t in tables if (path := root / t.name).is_file()]
    pace = Pace(progress, sum(sizes) + shard_bytes(description))
    whole = {table.name for table in tables if judge_table(root, table, pace, verdict)}
    shards = []
    for split, facts in description["splits"].items():
        index: Index | None = None
        if f"{split}/index.parquet" in whole:
            index = read_index(root, f"{split}/index.parquet", facts, verdict)
        for number, shard in enumerate(facts["shards"]):
            own = partial(index.rows, number) if index is not None else None
            shards.append(File(f"{split}/{shard['name']}", shard["sha256"], shard["bytes"], own))
        verdict.images += facts["images"]
    verdict.shards = len(shards)
    owner = {shard.sha256: shard.name for shard in shards}
    pool = ThreadPoolExecutor(threads, "stoker-verify")
    try:
        seen = pool.map(partial(look_at_shard, root, pace), shards)
        for shard, found in zip(shards, seen, strict=True):
            verdict.problems += shard_problems(root, shard, found, owner)
    finally:
        pace.stop()
        pool.shutdown(cancel_futures=True)
    verdict.bytes = pace.done


def shard_bytes(description: dict[str, Any]) -> int:
    return sum(
        shard["bytes"] for facts in description["splits"].values() for shard in facts["shards"]
    )


def judge_table(root: Path, table: File, pace: Pace, verdict: VerifyReport) -> bool:
    """Whether a table is the one that was packed."""
    seen = look_at(root / table.name, None, pace)
    if seen.trouble is None and seen.sha256 == table.sha256:
        return True
    words = seen.trouble or "damaged: its hash is not the one in dataset.json"
    verdict.problems.append(Problem(table.name, words))
    return False


def look_at_shard(root: Path, pace: Pace, shard: File) -> HashedFile:
    return look_at(root / shard.name, shard.rows() if shard.rows else None, pace)


class Index:
    """Where the images of a split lie; 40 bytes an image."""

    def __init__(self, table: pa.Table, sizes: list[int]) -> None:
        whole = table.combine_chunks()
        self.shard, self.offset, self.length = (
            numbers(whole, name).astype(np.int64) for name in COLUMNS[:3]
        )
        self._hash = whole.column("hash")
        self._edges = np.concatenate([[0], np.cumsum(sizes)]).astype(int).tolist()

    def rows(self, number: int) -> Rows:
        """Those of one shard."""
        first, end = self._edges[number], self._edges[number + 1]
        return Rows(
            first,
            self.offset[first:end].tolist(),
            self.length[first:end].tolist(),
            self._hash.slice(first, end - first).to_pylist(),
        )

    def complaint(self, facts: dict[str, Any]) -> str | None:
        """What does not fit the description."""
        sizes = [shard["images"] for shard in facts["shards"]]
        fits = sum(sizes) == len(self.shard)
        if not fits or not np.array_equal(self.shard, np.repeat(np.arange(len(sizes)), sizes)):
            return "its rows are not the images of the shards in order"
        limits = np.array([shard["bytes"] for shard in facts["shards"]], dtype=np.int64)
        ends = self.offset + self.length
        outside = (self.offset < 0) | (self.length < 0) | (ends > limits[self.shard])
        # Images do not overlap.
        outside[1:] |= (self.shard[1:] == self.shard[:-1]) & (self.offset[1:] < ends[:-1])
        if not outside.any():
            return None
        row, more = int(np.flatnonzero(outside)[0]), int(outside.sum()) - 1
        others = f", and so do {more:,} more" if more else ""
        return f"row {row} points outside its place in its shard{others}"


def read_index(root: Path, name: str, facts: dict[str, Any], verdict: VerifyReport) -> Index | None:
    """The index of a split; None, and a problem, where it cannot be used."""
    try:
        table = pq.read_table(root / name, columns=COLUMNS)
        index = Index(table, [shard["images"] for shard in facts["shards"]])
        complaint = index.complaint(facts)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        first_line = str(error).partition("\n")[0]
        complaint = f"cannot be read as an index: {first_line}"
    if complaint is None:
        return index
    verdict.problems.append(Problem(name, complaint))
    return None


def shard_problems(
    root: Path, shard: File, seen: HashedFile, owner: dict[str, str]
) -> list[Problem]:
    """What is wrong with a shard, in one line or a line for each image."""
    if seen.trouble is not None:
        return [Problem(shard.name, seen.trouble)]
    if seen.sha256 == shard.sha256 and not seen.bad:
        return []
    if seen.sha256 in owner and seen.sha256 != shard.sha256:
        return [Problem(shard.name, f"holds the bytes of {owner[seen.sha256]}")]
    found = []
    if seen.bytes != shard.bytes:
        found.append(Problem(shard.name, f"has {seen.bytes:,} bytes, not {shard.bytes:,}"))
    if shard.rows is None:
        words = "damaged; which images are hit cannot be said without its index"
        return found or [Problem(shard.name, words)]
    found += image_problems(root, shard, seen)
    return found or [
        Problem(shard.name, "damaged outside the images: a header, a label or padding of the tar")
    ]


def image_problems(root: Path, shard: File, seen: HashedFile) -> list[Problem]:
    """The images that were hit, by key, place and origin."""
    if not seen.bad or shard.rows is None:
        return []
    rows = shard.rows()
    index = (root / shard.name).with_name("index.parquet")
    names = pq.read_table(index, columns=["key", "path"])
    found = []
    for place in seen.bad[:MOST_NAMED]:
        key, origin = (names.column(c)[rows.first + place].as_py() for c in ("key", "path"))
        gone = rows.offset[place] + rows.length[place] > seen.bytes
        found.append(
            Problem(
                shard.name,
                f"image {key} at byte {rows.offset[place]} {'is cut off' if gone else 'is damaged'}"
                f" (from {origin})",
            )
        )
    if len(seen.bad) > MOST_NAMED:
        found.append(Problem(shard.name, f"and {len(seen.bad) - MOST_NAMED:,} more images of it"))
    return found


def look_for_strangers(root: Path, description: dict[str, Any], verdict: VerifyReport) -> None:
    """What lies in the folder and is not in the description: a reader of `*.tar` would read it."""
    known = {"dataset.json", "rejected.parquet", WALK_CACHE, SOURCE_CACHE}
    known |= {"near_duplicates.parquet"} if ALIKE in description else set()
    for split, facts in description["splits"].items():
        known |= {f"{split}/index.parquet", *(f"{split}/{s['name']}" for s in facts["shards"])}
    others = []
    for folder, _, names in os.walk(root):
        below = Path(folder).relative_to(root)
        found = {(below / name).as_posix() for name in names} - known
        hidden = below.parts[:1] == (".parts",)
        for name in sorted(found):
            if name.endswith((".tar", ".parquet")) and not hidden:
                verdict.problems.append(Problem(name, "not in dataset.json"))
            else:
                others.append(name)
    if others:
        more = f" and {len(others) - 1:,} more" if len(others) > 1 else ""
        verdict.notes.append(f"not part of the set: {others[0]}{more}")
