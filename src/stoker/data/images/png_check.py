"""Whether a PNG is complete. Pillow does not compare the checksums of the pixels, and shows missing
rows as black.

Invariant: memory is bounded; the result is a reason in one line, or None.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Values per pixel by colour type."""
ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
"""For each pass of an interlaced image: first column, first row, column step, row step."""
INFLATE_BYTES = 1 << 20
MAX_CHUNKS = 100_000
PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT")
"""Chunks that the pixels depend on: a wrong checksum of another chunk does not matter."""


def png_trouble(data: bytes) -> str | None:
    """What is wrong with a PNG's first image by its checksums and its size; None if nothing is."""
    expected, inflated_bytes = -1, 0
    inflate = zlib.decompressobj()
    for kind, start, size in chunks(data):
        if kind not in PIXEL_CHUNKS:
            continue
        body = memoryview(data)[start : start + size]
        checksum = data[start + size : start + size + 4]
        if checksum != zlib.crc32(body, zlib.crc32(kind)).to_bytes(4):
            return f"checksum of {kind.decode()} does not hold"
        if kind == b"IHDR":
            if size != 13:
                return "odd header"
            expected = raw_size(*struct.unpack(">IIBBxxB", body))
        elif kind == b"IDAT" and not inflate.eof:
            try:
                inflated_bytes += inflated_size(inflate, bytes(body), expected - inflated_bytes)
            except zlib.error as error:
                return str(error)
    if expected < 0 or inflated_bytes < expected:
        return f"{inflated_bytes:,} of {max(expected, 0):,} bytes of its pixels"
    return None


def too_many_chunks(data: bytes) -> bool:
    """Whether a PNG has so many chunks that reading through them takes long."""
    if not data.startswith(SIGNATURE):
        return False
    return any(number >= MAX_CHUNKS for number, _ in enumerate(chunks(data)))


def inflated_size(inflate: zlib._Decompress, body: bytes, limit: int) -> int:
    """How many bytes a chunk inflates to; it stops soon after `limit`."""
    size = 0
    while body and not inflate.eof and size <= limit:
        size += len(inflate.decompress(body, INFLATE_BYTES))
        body = inflate.unconsumed_tail
    return size


def chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and size of every chunk before the last one."""
    offset = len(SIGNATURE)
    while offset + 12 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, offset)
        if kind == b"IEND":
            return
        yield kind, offset + 8, size
        offset += 12 + size


def raw_size(width: int, height: int, depth: int, colour: int, interlaced: int) -> int:
    """Bytes of the decompressed rows, each with one byte for its filter."""
    bits = depth * CHANNELS.get(colour, 0)
    passes = ADAM7 if interlaced else ((0, 0, 1, 1),)
    total = 0
    for left, top, across, down in passes:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + -(-columns * bits // 8))
    return total
