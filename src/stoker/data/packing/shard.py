"""One shard is one task: a pure function of its inputs, committed by itself.

Invariants: the bytes of a shard follow from the task alone (no clock, no process, no machine), so
that it may be written anywhere, twice, or again after a kill. The part file is written last and is
the commit: a task that finds its part and a tar with the right hash returns at once.

A shard is a plain WebDataset tar (`key.jpg` or `key.npy`, `key.cls`). Its part is a Parquet table
with a row for each input: its offset in the tar, or why it was rejected. For a target in a store
both are made on a local disk and uploaded; there a tar is known by its size and its etag, which the
part names.
"""

from __future__ import annotations

import errno
import io
import json
import math
import os
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Protocol, cast

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stoker.commit import publish, sha256_file, sha256_json, temporary
from stoker.data.images.decode_any import MAX_BYTES, Rejected, decode, inspect, open_image
from stoker.data.images.encode import Storage, encode, fit, look, pixel_hash, short_hash
from stoker.data.packing.tar_writer import TarWriter
from stoker.data.packing.target.part import client_of, holds, part_facts, part_key, plain_etag
from stoker.data.packing.target.scratch import large_lock, scratch
from stoker.errors import StokerError
from stoker.faults import reach
from stoker.fleet.workers import map_tasks
from stoker.host.plain_file import NotPlain, open_plain
from stoker.locks.lock import locked
from stoker.stores.client import StoreClient
from stoker.stores.location import location_of
from stoker.stores.objects import Found, Missing
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
    """The inputs of one shard, and its target, split and number."""

    out: str
    """The path of a folder, or a location in a store."""
    split: str
    number: int
    first_key: int
    inputs: Inputs
    labels: tuple[int, ...]
    storage: Storage
    stored: Found | None = None
    """The tar that a store held when the pack began, where its part was there too."""

    def digest(self) -> str:
        settings = [self.split, self.number, self.first_key, asdict(self.storage), self.labels]
        return sha256_json([*settings, self.inputs.digest()])

    @property
    def tar_key(self) -> str:
        """The name of the tar within the target."""
        return f"{self.split}/{self.number:05d}.tar"

    @property
    def part_key(self) -> str:
        return part_key(self.split, self.number)

    @property
    def tar(self) -> Path:
        return Path(self.out) / self.tar_key

    @property
    def part(self) -> Path:
        return Path(self.out) / self.part_key


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
Parts = dict[str, list[Path]]
"""The part files of each split, in order."""


@dataclass(frozen=True)
class PartCounts:
    """What was counted in the parts of a set, without the rejected images."""

    labels: dict[str, NDArray[np.int64]]
    """The images of each class, by split."""
    repeated: NDArray[np.void]
    """The pixel hashes that occur more than once in the set."""


class TaskPlace(Protocol):
    """Where the tasks of a pack run."""

    def write(self, tasks: Iterator[ShardTask]) -> Generator[ShardReport]:
        """Write the shard of every task; yields their reports. Raises StokerError, and OSError
        where the target cannot be written."""

    def count(self, parts: Parts, rows: int, classes: int) -> PartCounts | None:
        """Count the parts of a finished set there; None where the caller counts as well."""


@dataclass(frozen=True)
class LocalProcesses:
    """So many processes of this machine: a TaskPlace."""

    workers: int

    def write(self, tasks: Iterator[ShardTask]) -> Generator[ShardReport]:
        return map_tasks(write_shard, tasks, self.workers)

    def count(self, parts: Parts, rows: int, classes: int) -> PartCounts | None:
        return None


def write_shards(tasks: Iterator[ShardTask], place: TaskPlace, on_report: OnReport) -> int:
    """Write every shard, report each, and return how many there are."""
    count = 0
    with closing(place.write(tasks)) as reports:
        for report in reports:
            on_report(report)
            count += 1
    return count


def write_shard(task: ShardTask) -> ShardReport:
    """Write the shard of a task, unless it is committed already; returns its counts. The one place
    that decides where a shard goes. Raises StoreError for a target in a store."""
    # Each worker has one core: OpenCV's own threads would slow it down.
    cv2.setNumThreads(0)
    digest = task.digest()
    if location := location_of(task.out):
        return upload_shard(task, digest, client_of(location))
    if (earlier := committed_report(task, digest)) is not None:
        return earlier
    task.tar.parent.mkdir(parents=True, exist_ok=True)
    task.part.parent.mkdir(parents=True, exist_ok=True)
    draft = temporary(task.tar)
    table = write_tar(task, digest, draft, Path(task.out) / ".parts" / "large.lock")
    publish(draft, task.tar)
    part = temporary(task.part)
    pq.write_table(table, part)
    publish(part, task.part)
    return report_of(table)


def write_tar(task: ShardTask, digest: str, draft: Path, large_lock: Path) -> pa.Table:
    """Write the tar of a task to a file; returns the table of its part."""
    with draft.open("wb") as file:
        rows = write_members(task, file, large_lock)
    facts = {"task": digest, "sha256": sha256_file(draft), "bytes": str(draft.stat().st_size)}
    facts |= {"inputs": task.inputs.digest(), "shrunk": json.dumps(shrunk_among(rows))}
    return pa.Table.from_pylist(rows, schema=task.inputs.schema).replace_schema_metadata(facts)


def upload_shard(task: ShardTask, digest: str, client: StoreClient) -> ShardReport:
    """Write the shard of a task on a local disk and upload it, then its part, which commits it."""
    if (earlier := uploaded_report(task, digest, client)) is not None:
        return earlier
    with scratch() as folder:
        draft = folder / "shard.tar"
        table = write_tar(task, digest, draft, large_lock())
        reach("shard:written")
        version = client.upload(task.tar_key, draft)
    reach("shard:uploaded")
    facts = {**part_facts(table), "etag": plain_etag(version)}
    file = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(facts), file)
    client.write(task.part_key, file.getvalue())
    reach("part:uploaded")
    return report_of(table)


def uploaded_report(task: ShardTask, digest: str, client: StoreClient) -> ShardReport | None:
    """The counts of a shard that a store held, committed, when the pack began; None otherwise."""
    if task.stored is None:
        return None
    try:
        table = pq.read_table(io.BytesIO(client.read(task.part_key)[0]))
        if (
            part_facts(table)["task"] == digest
            and holds(task.stored, part_facts(table))
            and task.inputs.still_true(table)
        ):
            return report_of(table)
    except (Missing, pa.ArrowException, KeyError):
        pass
    return None


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
            return report_of(table)
    except (OSError, pa.ArrowException, KeyError):
        pass
    return None


def report_of(table: pa.Table) -> ShardReport:
    """The counts of a part."""
    facts = part_facts(table)
    rejected = table.num_rows - table.column("reason").null_count
    # Parts of earlier versions do not have it.
    shrunk, width, height = json.loads(facts.get("shrunk", "[0, 0, 0]"))
    images, size = table.num_rows - rejected, int(facts["bytes"])
    return ShardReport(images, rejected, size, shrunk, (width, height))


def write_members(task: ShardTask, file: IO[bytes], large_lock: Path) -> list[Row]:
    """Write each image and its label into the tar; returns a row for every input."""
    rows, tar = [], TarWriter(file)
    prepared = task.inputs.prepare(task.storage, large_lock)
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
    with locked(lock.parent, lock):
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
