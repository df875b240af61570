"""The samples of a shard as MosaicML Streaming and LitData write them.

    uint32 count, uint32[count + 1] offsets, then the samples    both tools
    LDFZ01, offsets, a table, then frames of zstd                LitData with compression

Invariants: a file is read once, forward, also where it is compressed. Every count, offset and size
is checked against the file before memory is taken for it; what contradicts itself is a StokerError
that names the file. Nothing in a file is a path or is run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stoker.data.images.decode_any import MAX_BYTES
from stoker.data.sources.item import one_reason
from stoker.data.sources.zip_stream import Bomb, refuse_bomb
from stoker.errors import StokerError
from stoker.host.plain_file import open_plain
from stoker.text import plural, shown

MOST_SAMPLES = 1 << 24
"""In one shard, which has at most 4 GB: offsets are numbers of 32 bits."""
MOST_SAMPLE_BYTES = MAX_BYTES + (1 << 20)
"""An image and what is stored beside it."""
MOST_FRAME_BYTES = 1 << 30
READ_BYTES = 1 << 20
ZSTD, FRAMED = b"\x28\xb5\x2f\xfd", b"LDFZ01\0\0"
"""The first bytes of zstd, and of a file of LitData's frames."""
CODECS = {"zstd": "zstd", "gz": "gzip", "bz2": "bz2", "br": "brotli"}
"""Compressions of whole files: their names in an index, and Arrow's."""
_PREFIX, _FRAME = struct.Struct("<8sHHIII"), struct.Struct("<IIQII")


@dataclass(frozen=True)
class SampleColumn:
    """One value of every sample."""

    name: str
    encoding: str
    size: int | None = None
    """Its bytes, where all samples have as many; otherwise each sample says its own."""


@dataclass(frozen=True)
class SampleFile:
    """A shard: where it is, how it is compressed, and what the index says about it."""

    path: Path
    codec: str | None
    """A name of Arrow's; None for a plain file."""
    count: int
    columns: tuple[SampleColumn, ...]


class ShardDamage(Exception):
    """What is wrong with a shard."""


class _Forward:
    """The bytes of a file, decompressed, as they are read."""

    def __init__(self, file: IO[bytes], codec: str | None) -> None:
        self._file, self._codec = file, codec
        self._stream: Any = pa.input_stream(file, compression=codec) if codec else file
        self.offset = 0
        self.size = None if codec else file.seek(0, 2)
        file.seek(0)

    def read(self, count: int) -> bytes:
        """Exactly so many bytes; raises ShardDamage where the file ends before."""
        if self.size is not None and count > self.size - self.offset:
            raise ShardDamage("it ends early")
        blocks, left = [], count
        while left:
            block = self._stream.read(min(left, READ_BYTES))
            if not block:
                raise ShardDamage("it ends early")
            self.offset += len(block)
            left -= len(block)
            blocks.append(block)
            if self._codec:
                refuse_bomb(self.offset, self._file.tell())
        return b"".join(blocks)

    def skip_to(self, offset: int) -> None:
        if offset < self.offset:
            raise ShardDamage("an offset points backwards")
        if self.size is not None:
            if offset > self.size:
                raise ShardDamage("an offset points behind its end")
            self._file.seek(offset)
            self.offset = offset
        while self.offset < offset:
            self.read(min(offset - self.offset, READ_BYTES))


@contextmanager
def reading_shard(path: Path) -> Iterator[None]:
    """Turn what is wrong with a shard into a StokerError with its name."""
    try:
        yield
    except Bomb as error:
        raise StokerError(
            f"{shown(str(path))} {error}: refused, because it may be an attack"
        ) from error
    except FileNotFoundError as error:
        raise StokerError(
            f"{shown(str(path))} is missing, and the index of its set names it: get a whole copy "
            "and run the same command again"
        ) from error
    except (OSError, ShardDamage, pa.ArrowException, struct.error) as error:
        raise StokerError(
            f"{shown(str(path))} is damaged or incomplete ({one_reason(error)}): get a whole copy "
            "and run the same command again; finished work is kept"
        ) from error


def samples_of(file: SampleFile) -> Iterator[bytes | None]:
    """Yield every sample of a shard; None for one that is too large. Raises StokerError."""
    with reading_shard(file.path), open_plain(file.path) as opened:
        codec = file.codec
        head = opened.read(len(FRAMED))
        if codec is None and head.startswith(ZSTD):
            codec = "zstd"
        if codec is None and head == FRAMED:
            yield from framed_samples(_Forward(opened, None), file.count)
        else:
            yield from plain_samples(_Forward(opened, codec), file.count)


def plain_samples(source: _Forward, count: int) -> Iterator[bytes | None]:
    offsets = offsets_in(source, count, int.from_bytes(source.read(4), "little"))
    if source.size is not None and len(offsets) and int(offsets[-1]) > source.size:
        raise ShardDamage("an offset points behind its end")
    if len(offsets) > 1 and offsets[0] == offsets[-1]:
        raise ShardDamage("its samples are rows of Arrow, which are not read")
    for begin, end in pairs(offsets):
        source.skip_to(begin)
        if end - begin > MOST_SAMPLE_BYTES:
            yield None
            continue
        data = source.read(end - begin)
        # No sample begins so: its first number would be a size of 4 GB.
        yield inflated(data) if data.startswith(ZSTD) else data


def framed_samples(source: _Forward, count: int) -> Iterator[bytes | None]:
    """The samples of a file of LitData whose samples are compressed some at a time."""
    _, version, _, stated, _, frames = _PREFIX.unpack(source.read(_PREFIX.size))
    if version != 1 or frames > stated:
        raise ShardDamage(f"version {version} with {frames:,} frames")
    offsets = offsets_in(source, count, stated)
    table = source.read(_FRAME.size * frames)
    following = 0
    for first, items, begin, packed, plain in _FRAME.iter_unpack(table):
        if first != following or first + items > count:
            raise ShardDamage("its frames are not in order")
        following += items
        ends = offsets[first : first + items + 1]
        if plain != int(ends[-1]) - int(ends[0]) or not packed > 0 or plain > MOST_FRAME_BYTES:
            raise ShardDamage("a frame has a wrong size")
        source.skip_to(begin)
        data = inflated(source.read(packed), plain)
        for start, end in pairs(ends - ends[0]):
            yield data[start:end] if end - start <= MOST_SAMPLE_BYTES else None
    if following != count:
        raise ShardDamage("samples are missing")


def offsets_in(source: _Forward, count: int, stated: int) -> NDArray[np.uint32]:
    """The offsets of a shard, in order. Raises ShardDamage where it has another count."""
    if stated != count or count > MOST_SAMPLES:
        raise ShardDamage(f"it has {plural(stated, 'sample')}, and the index says {count:,}")
    offsets = np.frombuffer(source.read(4 * (count + 1)), "<u4")
    if (offsets[1:] < offsets[:-1]).any():
        raise ShardDamage("an offset points backwards")
    return offsets


def pairs(offsets: NDArray[np.uint32]) -> Iterator[tuple[int, int]]:
    return ((int(offsets[at]), int(offsets[at + 1])) for at in range(len(offsets) - 1))


def inflated(data: bytes, size: int = -1) -> bytes:
    """Decompressed zstd of this size, where it is known. Raises ShardDamage, and Bomb."""
    stream = pa.input_stream(pa.BufferReader(data), compression="zstd")
    most = size if size >= 0 else MOST_SAMPLE_BYTES
    blocks, plain = [], 0
    while block := stream.read(min(most + 1 - plain, READ_BYTES)):
        blocks.append(block)
        plain += len(block)
        refuse_bomb(plain, len(data))
        if plain > most:
            raise ShardDamage("a compressed sample is larger than it may be")
    if size >= 0 and plain != size:
        raise ShardDamage("a frame has a wrong size")
    return b"".join(blocks)


def values_of(sample: bytes, columns: tuple[SampleColumn, ...]) -> dict[str, bytes]:
    """The bytes of each value of a sample. Raises ShardDamage where they do not fill it exactly."""
    sizes, at = [], 0
    for column in columns:
        if column.size:
            sizes.append(column.size)
            continue
        sizes.append(int.from_bytes(sample[at : at + 4], "little"))
        at += 4
    if at + sum(sizes) != len(sample):
        raise ShardDamage("the values of a sample do not fill it")
    values = {}
    for column, size in zip(columns, sizes, strict=True):
        values[column.name] = sample[at : at + size]
        at += size
    return values
