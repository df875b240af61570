"""One shard = one task = a pure function of its inputs = one commit.

Invariants: the bytes of a shard follow from the task alone (no clock, no process, no machine), so
that it may be done anywhere, twice, or again after a kill. The part file, written last, is the
commit: a task that finds its part and a tar with the right hash returns at once.

A shard is a plain WebDataset tar (`key.jpg` or `key.npy`, `key.cls`). Its part is a Parquet table
with a row for each input: where it lies in the tar, or why it was rejected.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Protocol

import cv2
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.commit import publish, sha256_file, temporary
from stoker.data.images.decode_any import MAX_BYTES, Rejected, decode, inspect, open_image
from stoker.data.images.encode import Storage, encode, fit, look, pixel_hash, short_hash
from stoker.data.packing.tar_writer import TarWriter
from stoker.errors import StokerError
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
PASSING = (
    *(errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT, errno.ENOTCONN),
    *(errno.ECONNRESET, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
)
"""Errors that say more of the moment than of the file."""
LARGE_PIXELS = 32_000_000
"""Images larger than this are decoded by one worker at a time, so that memory stays bounded."""


class Inputs(Protocol):
    """Where the images of a task come from."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the part that is written."""

    def digest(self) -> str:
        """What tells these inputs from others."""

    def stored(self, storage: Storage, alone: Path) -> Iterator[tuple[Row, bytes]]:
        """For each image what is known of it and the bytes to store; rejects have no bytes."""

    def unchanged(self, table: pa.Table) -> bool:
        """Whether a part written before still tells the truth of these inputs."""


@dataclass(frozen=True)
class ShardTask:
    """The inputs of one shard and where it goes."""

    out: str
    split: str
    number: int
    first_key: int
    inputs: Inputs
    labels: tuple[int, ...]
    storage: Storage

    def digest(self) -> str:
        what = [self.split, self.number, self.first_key, asdict(self.storage), self.labels]
        return hashlib.sha256(json.dumps([*what, self.inputs.digest()]).encode()).hexdigest()

    @property
    def tar(self) -> Path:
        return Path(self.out) / self.split / f"{self.number:05d}.tar"

    @property
    def part(self) -> Path:
        return Path(self.out) / ".parts" / f"{self.split}-{self.number:05d}.parquet"


@dataclass(frozen=True)
class Files:
    """Images in files below a folder, or at paths of their own."""

    root: str
    paths: tuple[str, ...]
    schema = ROW

    def digest(self) -> str:
        names = [os.fsencode(path).hex() for path in self.paths]
        return hashlib.sha256(json.dumps(names).encode()).hexdigest()

    def stored(self, storage: Storage, alone: Path) -> Iterator[tuple[Row, bytes]]:
        for path in self.paths:
            try:
                data = read_bounded(os.path.join(self.root, path))  # noqa: PTH118
                row, kept = process(data, storage, alone)
            except Rejected as why:
                row, kept = {"reason": str(why)}, b""
            yield row | {"path": shown(path)}, kept

    def unchanged(self, table: pa.Table) -> bool:
        """Whether what was rejected then is rejected now: a file may have been mended since."""
        for path, reason in zip(self.paths, table.column("reason").to_pylist(), strict=True):
            if reason is not None:
                try:
                    inspect(read_bounded(os.path.join(self.root, path)))  # noqa: PTH118
                except Rejected as why:
                    if str(why) == reason:
                        continue
                return False
        return True


@dataclass(frozen=True)
class ShardReport:
    """What a task says to whoever counts."""

    images: int
    rejected: int
    bytes: int


def write_shard(task: ShardTask) -> ShardReport:
    """Do the task, or find it done."""
    # Workers have a core each: OpenCV's own threads would only get in their way.
    cv2.setNumThreads(0)
    digest = task.digest()
    done = committed(task, digest)
    if done is not None:
        return done
    task.tar.parent.mkdir(parents=True, exist_ok=True)
    task.part.parent.mkdir(parents=True, exist_ok=True)
    draft = temporary(task.tar)
    with draft.open("wb") as file:
        rows = write_members(task, file)
    tar_hash, size = sha256_file(draft), draft.stat().st_size
    publish(draft, task.tar)
    facts = {"task": digest, "sha256": tar_hash, "bytes": str(size)}
    facts["inputs"] = task.inputs.digest()
    table = pa.Table.from_pylist(rows, schema=task.inputs.schema).replace_schema_metadata(facts)
    part = temporary(task.part)
    pq.write_table(table, part)
    publish(part, task.part)
    return report_of(table, size)


def committed(task: ShardTask, digest: str) -> ShardReport | None:
    """The report of a shard that was written before, if it is whole and of this very task."""
    try:
        table = pq.read_table(task.part)
        facts = part_facts(table)
        if facts["task"] != digest or facts["sha256"] != sha256_file(task.tar):
            return None
        if not task.inputs.unchanged(table):
            return None
    except (OSError, pa.ArrowException, KeyError):
        return None
    return report_of(table, int(facts["bytes"]))


def part_facts(table: pa.Table) -> dict[str, str]:
    """What a part says of its shard: task, hash, size."""
    return {word.decode(): text.decode() for word, text in (table.schema.metadata or {}).items()}


def report_of(table: pa.Table, size: int) -> ShardReport:
    rejected = table.num_rows - table.column("reason").null_count
    return ShardReport(table.num_rows - rejected, rejected, size)


def write_members(task: ShardTask, file: IO[bytes]) -> list[Row]:
    """Write each image and its label into the tar; a row for every input."""
    rows = []
    alone = Path(task.out) / ".parts" / "large.lock"
    tar = TarWriter(file)
    stored = task.inputs.stored(task.storage, alone)
    for place, ((found, data), label) in enumerate(zip(stored, task.labels, strict=True)):
        key = f"{task.first_key + place:09d}"
        row: Row = found | {"key": key, "label": label}
        if row.get("reason") is None:
            suffix = "npy" if task.storage.codec == "raw" else "jpg"
            row["offset"] = tar.add(f"{key}.{suffix}", data)
            tar.add(f"{key}.cls", str(label).encode())
            row |= {"shard": task.number, "length": len(data)}
        rows.append(row)
    tar.close()
    return rows


def process(data: bytes, storage: Storage, alone: Path) -> tuple[Row, bytes]:
    """One image as it came to one image as it is stored, and what was seen on the way."""
    opened = open_image(data)
    with one_at_a_time(alone, opened.width * opened.height > LARGE_PIXELS):
        image = decode(data, opened)
        pixels = fit(image.pixels, storage)
        stored = encode(data, image, pixels, storage)
        row: Row = {"width": pixels.shape[1], "height": pixels.shape[0]}
        row |= {"hash": short_hash(stored), "pixels": pixel_hash(pixels)}
        row["orientation"] = image.orientation
        if storage.near_duplicates:
            row["look"] = look(image.pixels)
    return row, stored


@contextmanager
def one_at_a_time(lock: Path, needed: bool) -> Iterator[None]:
    """Wait for the other workers' large images."""
    if not needed:
        yield
        return
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_bounded(path: str) -> bytes:
    """A file's bytes, unless there are too many or it cannot be read."""
    try:
        # Not to hang on a pipe that somebody called an image; names need not be valid text.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode):
                raise Rejected("not a regular file")
            data = file.read(min(facts.st_size, MAX_BYTES) + 1)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in PASSING:
            raise StokerError(
                f"cannot read {shown(path)} for now ({error}): the same command goes on"
            ) from error
        raise Rejected(f"cannot read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_BYTES:
        raise Rejected(f"file larger than {MAX_BYTES >> 20} MiB")
    return data
