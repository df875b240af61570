"""One shard = one task = a pure function of its inputs = one commit.

Invariants: the bytes of a shard follow from the task alone (no clock, no process, no machine), so
that it may be done anywhere, twice, or again after a kill. The part file, written last, is the
commit: a task that finds its part and a tar with the right hash returns at once.

A shard is a plain WebDataset tar (`key.jpg` or `key.npy`, `key.cls`). Its part is a Parquet table
with a row for each input: where it lies in the tar, or why it was rejected.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg

from stoker.commit import publish, sha256_file, temporary
from stoker.data.inspect import MAX_BYTES, Inspected, Pixels, Rejected, inspect
from stoker.data.sources import shown

JPEG_MAX_SIDE = 65500
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
        ("path", pa.string()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True)
class Storage:
    """How images are stored."""

    codec: str = "jpeg"
    """`jpeg`, or `raw` for uint8 arrays that need no decoding."""
    max_side: int = 500
    """Longer side in pixels at most; 0 keeps the size."""
    quality: int = 90
    """JPEG quality of images that had to be encoded again."""


@dataclass(frozen=True)
class ShardTask:
    """The inputs of one shard."""

    out: str
    split: str
    number: int
    first_key: int
    root: str
    paths: tuple[str, ...]
    labels: tuple[int, ...]
    storage: Storage

    def digest(self) -> str:
        inputs = [self.split, self.number, self.first_key, asdict(self.storage)]
        names = [os.fsencode(path).hex() for path in self.paths]
        return hashlib.sha256(json.dumps([*inputs, names, self.labels]).encode()).hexdigest()

    @property
    def tar(self) -> Path:
        return Path(self.out) / self.split / f"{self.number:05d}.tar"

    @property
    def part(self) -> Path:
        return Path(self.out) / ".parts" / f"{self.split}-{self.number:05d}.parquet"


@dataclass(frozen=True)
class ShardReport:
    """What a task says to whoever counts."""

    images: int
    rejected: int
    bytes: int


def write_shard(task: ShardTask) -> ShardReport:
    """Do the task, or find it done."""
    done = committed(task)
    if done is not None:
        return done
    task.tar.parent.mkdir(parents=True, exist_ok=True)
    task.part.parent.mkdir(parents=True, exist_ok=True)
    draft = temporary(task.tar)
    with draft.open("wb") as file:
        rows = write_members(task, file)
    digest, size = sha256_file(draft), draft.stat().st_size
    publish(draft, task.tar)
    facts = {"task": task.digest(), "sha256": digest, "bytes": str(size)}
    table = pa.Table.from_pylist(rows, schema=ROW).replace_schema_metadata(facts)
    part = temporary(task.part)
    pq.write_table(table, part)
    publish(part, task.part)
    return report_of(table, size)


def committed(task: ShardTask) -> ShardReport | None:
    """The report of a shard that was written before, if it is whole and of this very task."""
    try:
        table = pq.read_table(task.part)
        facts = part_facts(table)
        if facts["task"] != task.digest() or facts["sha256"] != sha256_file(task.tar):
            return None
        if not still_rejected(task, table):
            return None
    except (OSError, pa.ArrowException, KeyError):
        return None
    return report_of(table, int(facts["bytes"]))


def still_rejected(task: ShardTask, table: pa.Table) -> bool:
    """Whether what was rejected then is rejected now: a file may have been mended since."""
    for path, reason in zip(task.paths, table.column("reason").to_pylist(), strict=True):
        if reason is not None:
            try:
                inspect(read_bounded(f"{task.root}/{path}"))
            except Rejected as why:
                if str(why) == reason:
                    continue
            return False
    return True


def part_facts(table: pa.Table) -> dict[str, str]:
    """What a part says of its shard: task, hash, size."""
    return {word.decode(): text.decode() for word, text in (table.schema.metadata or {}).items()}


def report_of(table: pa.Table, size: int) -> ShardReport:
    rejected = table.num_rows - table.column("reason").null_count
    return ShardReport(table.num_rows - rejected, rejected, size)


def write_members(task: ShardTask, file: IO[bytes]) -> list[dict[str, object]]:
    """Write each image and its label into the tar; a row for every input."""
    rows = []
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for place, (path, label) in enumerate(zip(task.paths, task.labels, strict=True)):
            key = f"{task.first_key + place:09d}"
            row: dict[str, object] = {"key": key, "label": label, "path": shown(path)}
            try:
                data = read_bounded(f"{task.root}/{path}")
                image = inspect(data)
                pixels = fit(image.pixels, task.storage.max_side)
                suffix, stored = encode(data, image, pixels, task.storage)
                row["offset"] = add_member(tar, f"{key}.{suffix}", stored)
                add_member(tar, f"{key}.cls", str(label).encode())
                row |= {"shard": task.number, "length": len(stored)}
                row |= {"width": pixels.shape[1], "height": pixels.shape[0]}
                row |= {"hash": short_hash(stored), "pixels": pixel_hash(image.pixels)}
                row["orientation"] = image.orientation
            except Rejected as why:
                row["reason"] = str(why)
            rows.append(row)
    return rows


def read_bounded(path: str) -> bytes:
    """A file's bytes, unless there are too many or it cannot be read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - names need not be valid text
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Rejected(f"cannot read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise Rejected(f"file larger than {MAX_BYTES >> 20} MiB")
    return data


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    """Append a file with fixed metadata; where its bytes begin."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    offset = tar.offset + tarfile.BLOCKSIZE
    tar.addfile(member, io.BytesIO(data))
    return offset


def fit(pixels: Pixels, max_side: int) -> Pixels:
    """Shrink so that the longer side is at most `max_side`, averaging over areas."""
    height, width = pixels.shape[:2]
    longer = max(height, width)
    if not max_side or longer <= max_side:
        return pixels
    size = (max(round(width * max_side / longer), 1), max(round(height * max_side / longer), 1))
    shrunk: Pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return shrunk


def encode(data: bytes, image: Inspected, pixels: Pixels, storage: Storage) -> tuple[str, bytes]:
    """The stored form of an image. A JPEG that is fine as it is keeps its own bytes."""
    if storage.codec == "raw":
        array = io.BytesIO()
        np.lib.format.write_array(array, np.ascontiguousarray(pixels), version=(1, 0))
        return "npy", array.getvalue()
    if image.kept and pixels is image.pixels:
        return "jpg", data
    if max(pixels.shape[:2]) > JPEG_MAX_SIDE:
        raise Rejected(f"longer than {JPEG_MAX_SIDE} pixels, the most a JPEG can hold")
    stored: bytes = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=storage.quality, colorsubsampling="420"
    )
    return "jpg", stored


def short_hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


def pixel_hash(pixels: Pixels) -> bytes:
    """The same for two files with the same picture, whatever their bytes."""
    shape = f"{pixels.shape[0]}x{pixels.shape[1]}".encode()
    return short_hash(shape + np.ascontiguousarray(pixels).tobytes())
