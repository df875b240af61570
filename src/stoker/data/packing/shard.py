"""One shard is one task: a pure function of its inputs, committed by itself.

Invariants: the bytes of a shard follow from the task alone (no clock, no process, no machine), so
that it may be written anywhere, twice, or again after a kill. The part file is written last and is
the commit: a task that finds its part and a tar with the right hash returns at once.

A shard is a plain WebDataset tar (`key.jpg` or `key.npy`, `key.cls`). Its part is a Parquet table
with a row for each input: its offset in the tar, or why it was rejected.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Protocol, cast

import cv2
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.commit import publish, sha256_file, sha256_json, temporary
from stoker.data.images.decode_any import MAX_BYTES, Rejected, decode, inspect, open_image
from stoker.data.images.encode import Storage, encode, fit, look, pixel_hash, short_hash
from stoker.data.packing.tar_writer import TarWriter
from stoker.errors import StokerError
from stoker.fleet.workers import map_tasks
from stoker.host.plain_file import NotPlain, open_plain
from stoker.text import shown

ROW = pa.schema(
    [
        ("key", pa.string()),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("length", pa.int32()),
        ("label", pa.int32()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("hash", pa.binary(16)),
        ("pixels", pa.binary(16)),
        ("orientation", pa.int8()),
        ("look", pa.uint64()),
        ("path", pa.string()),
        ("reason", pa.string()),
    ]
)
Row = dict[str, object]
TRANSIENT = (
    *(errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT, errno.ENOTCONN),
    *(errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
)
"""Errors of the moment, not of the file: the next attempt may read it."""
LARGE_PIXELS = 32_000_000
"""Images larger than this are decoded by one worker at a time, so that memory stays bounded."""


class Inputs(Protocol):
    """The images of a task."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the part that is written."""

    def digest(self) -> str:
        """A hash that identifies these inputs."""

    def prepare(self, storage: Storage, large_lock: Path) -> Iterator[tuple[Row, bytes]]:
        """For each image its row and the bytes to store; a rejected image has no bytes."""

    def still_true(self, table: pa.Table) -> bool:
        """Whether an earlier part still describes these inputs."""


@dataclass(frozen=True)
class ShardTask:
    """The inputs of one shard, and its folder, split and number."""

    out: str
    split: str
    number: int
    first_key: int
    inputs: Inputs
    labels: tuple[int, ...]
    storage: Storage

    def digest(self) -> str:
        settings = [self.split, self.number, self.first_key, asdict(self.storage), self.labels]
        return sha256_json([*settings, self.inputs.digest()])

    @property
    def tar(self) -> Path:
        return Path(self.out) / self.split / f"{self.number:05d}.tar"

    @property
    def part(self) -> Path:
        return part_path(Path(self.out), self.split, self.number)


def part_path(out: Path, split: str, number: int) -> Path:
    return out / ".parts" / f"{split}-{number:05d}.parquet"


@dataclass(frozen=True)
class Files:
    """Images in files below a folder, or at paths of their own."""

    root: str
    paths: tuple[str, ...]
    schema = ROW

    def digest(self) -> str:
        return sha256_json([os.fsencode(path).hex() for path in self.paths])

    def prepare(self, storage: Storage, large_lock: Path) -> Iterator[tuple[Row, bytes]]:
        for path in self.paths:
            try:
                data = read_bounded(os.path.join(self.root, path))  # noqa: PTH118
                row, stored = process(data, storage, large_lock)
            except Rejected as rejection:
                row, stored = {"reason": str(rejection)}, b""
            yield row | {"path": shown(path)}, stored

    def still_true(self, table: pa.Table) -> bool:
        """Whether every rejected file is still rejected: it may have been replaced since."""
        for path, reason in zip(self.paths, table.column("reason").to_pylist(), strict=True):
            if reason is not None:
                try:
                    inspect(read_bounded(os.path.join(self.root, path)))  # noqa: PTH118
                except Rejected as rejection:
                    if str(rejection) == reason:
                        continue
                return False
        return True


@dataclass(frozen=True)
class ShardReport:
    images: int
    rejected: int
    bytes: int
    shrunk: int = 0
    """Images that are stored with fewer pixels than their source has."""
    largest: tuple[int, int] = (0, 0)
    """Width and height of the largest source among these."""


OnReport = Callable[[ShardReport], None]


def write_shards(tasks: Iterator[ShardTask], workers: int, on_report: OnReport) -> int:
    """Write every shard in worker processes, report each, and return how many there are."""
    count = 0
    with closing(map_tasks(write_shard, tasks, workers)) as reports:
        for report in reports:
            on_report(report)
            count += 1
    return count


def write_shard(task: ShardTask) -> ShardReport:
    """Write the shard of a task, unless it is committed already; returns its counts."""
    # Each worker has one core: OpenCV's own threads would slow it down.
    cv2.setNumThreads(0)
    digest = task.digest()
    if (earlier := committed_report(task, digest)) is not None:
        return earlier
    task.tar.parent.mkdir(parents=True, exist_ok=True)
    task.part.parent.mkdir(parents=True, exist_ok=True)
    draft = temporary(task.tar)
    with draft.open("wb") as file:
        rows = write_members(task, file)
    tar_hash, size = sha256_file(draft), draft.stat().st_size
    publish(draft, task.tar)
    inputs = task.inputs.digest()
    facts = {"task": digest, "sha256": tar_hash, "bytes": str(size), "inputs": inputs}
    facts["shrunk"] = json.dumps(shrunk_among(rows))
    table = pa.Table.from_pylist(rows, schema=task.inputs.schema).replace_schema_metadata(facts)
    part = temporary(task.part)
    pq.write_table(table, part)
    publish(part, task.part)
    return report_of(table, size)


def shrunk_among(rows: list[Row]) -> list[int]:
    """How many images were shrunk, and width and height of the largest source of these."""
    sources = [cast(tuple[int, int], row["source"]) for row in rows if "source" in row]
    width, height = max(sources, key=math.prod, default=(0, 0))
    return [len(sources), width, height]


def committed_report(task: ShardTask, digest: str) -> ShardReport | None:
    """The counts of a shard that is committed; None where it is missing, torn or another task's."""
    try:
        table = pq.read_table(task.part)
        facts = part_facts(table)
        same = facts["task"] == digest and facts["sha256"] == sha256_file(task.tar)
        if same and task.inputs.still_true(table):
            return report_of(table, int(facts["bytes"]))
    except (OSError, pa.ArrowException, KeyError):
        pass
    return None


def part_facts(table: pa.Table) -> dict[str, str]:
    """The metadata of a part: `task`, `inputs`, and the shard's `sha256` and `bytes`."""
    return {name.decode(): text.decode() for name, text in (table.schema.metadata or {}).items()}


def report_of(table: pa.Table, size: int) -> ShardReport:
    rejected = table.num_rows - table.column("reason").null_count
    # Parts of earlier versions do not have it.
    shrunk, width, height = json.loads(part_facts(table).get("shrunk", "[0, 0, 0]"))
    return ShardReport(table.num_rows - rejected, rejected, size, shrunk, (width, height))


def write_members(task: ShardTask, file: IO[bytes]) -> list[Row]:
    """Write each image and its label into the tar; returns a row for every input."""
    rows, tar = [], TarWriter(file)
    prepared = task.inputs.prepare(task.storage, Path(task.out) / ".parts" / "large.lock")
    for number, ((row, data), label) in enumerate(zip(prepared, task.labels, strict=True)):
        key = f"{task.first_key + number:09d}"
        row |= {"key": key, "label": label}
        if row.get("reason") is None:
            suffix = "npy" if task.storage.codec == "raw" else "jpg"
            row["offset"] = tar.add(f"{key}.{suffix}", data)
            tar.add(f"{key}.cls", str(label).encode())
            row |= {"shard": task.number, "length": len(data)}
        rows.append(row)
    tar.close()
    return rows


def process(data: bytes, storage: Storage, large_lock: Path) -> tuple[Row, bytes]:
    """The row of an image and the bytes to store; raises Rejected where it cannot be used."""
    opened = open_image(data)
    with one_at_a_time(large_lock, opened.width * opened.height > LARGE_PIXELS):
        image = decode(data, opened)
        pixels = fit(image.pixels, storage)
        stored = encode(data, image, pixels, storage)
        row: Row = {"width": pixels.shape[1], "height": pixels.shape[0]}
        row |= {"hash": short_hash(stored), "pixels": pixel_hash(pixels)}
        row["orientation"] = image.orientation
        if pixels is not image.pixels:
            row["source"] = image.pixels.shape[1::-1]
        if storage.near_duplicates:
            row["look"] = look(image.pixels)
    return row, stored


@contextmanager
def one_at_a_time(lock: Path, needed: bool) -> Iterator[None]:
    """Hold a lock that all workers share, where it is needed."""
    if not needed:
        yield
        return
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_bounded(path: str) -> bytes:
    """A file's bytes. Raises Rejected where it cannot be used, StokerError if a retry may help."""
    try:
        with open_plain(Path(path)) as file:
            data = file.read(min(os.fstat(file.fileno()).st_size, MAX_BYTES) + 1)
    except NotPlain:
        raise Rejected("not a regular file") from None
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in TRANSIENT:
            raise StokerError(
                f"cannot read {shown(path)} at the moment ({error}): run the same command to "
                "continue"
            ) from error
        raise Rejected(f"cannot read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_BYTES:
        raise Rejected(f"file larger than {MAX_BYTES >> 20} MiB")
    return data
