"""Whether a PNG is whole: Pillow compares no checksum of the pixels, and takes missing rows for
black ones.

Invariant: bounded memory; what is found is one line, or nothing.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Values a pixel by colour type."""
ADAM7 = (
    (0, 0, 8, 8),
    (4, 0, 8, 8),
    (0, 4, 4, 8),
    (2, 0, 4, 4),
    (0, 2, 2, 4),
    (1, 0, 2, 2),
    (0, 1, 1, 2),
)
"""First column, first row, and the steps between them, of each pass of an interlaced image."""
PIECE = 1 << 20
MOST_CHUNKS = 100_000
TELLING = (b"IHDR", b"PLTE", b"tRNS", b"IDAT")
"""Chunks that pixels depend on: a wrong checksum elsewhere says nothing of them."""


def png_trouble(data: bytes) -> str | None:
    """What is wrong with a PNG's first image, as far as its checksums and its size tell."""
    expected, came = -1, 0
    inflate = zlib.decompressobj()
    for kind, start, size in chunks(data):
        if kind not in TELLING:
            continue
        view = memoryview(data)
        body = view[start : start + size]
        checksum = data[start + size : start + size + 4]
        if checksum != zlib.crc32(body, zlib.crc32(kind)).to_bytes(4):
            return f"checksum of {kind.decode()} does not hold"
        if kind == b"IHDR":
            if size != 13:
                return "odd header"
            expected = raw_size(*struct.unpack(">IIBBxxB", body))
        elif kind == b"IDAT" and not inflate.eof:
            try:
                came += inflated(inflate, bytes(body), expected - came)
            except zlib.error as error:
                return str(error)
    if expected < 0 or came < expected:
        return f"{came:,} of {max(expected, 0):,} bytes of its pixels"
    return None


def too_many_chunks(data: bytes) -> bool:
    """Whether a PNG is cut into so many pieces that walking through them takes long."""
    if not data.startswith(SIGNATURE):
        return False
    return any(number >= MOST_CHUNKS for number, _ in enumerate(chunks(data)))


def inflated(inflate: zlib._Decompress, body: bytes, most: int) -> int:
    """How many bytes come out; no more are made than a whole image needs."""
    came = 0
    while body and not inflate.eof and came <= most:
        came += len(inflate.decompress(body, PIECE))
        body = inflate.unconsumed_tail
    return came


def chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Kind, start and size of every chunk up to the last."""
    place = len(SIGNATURE)
    while place + 12 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"IEND":
            return
        yield kind, place + 8, size
        place += 12 + size


def raw_size(width: int, height: int, depth: int, colour: int, interlaced: int) -> int:
    """Bytes of the unpacked rows, each with the byte that names its filter."""
    bits = depth * CHANNELS.get(colour, 0)
    passes = ADAM7 if interlaced else ((0, 0, 1, 1),)
    total = 0
    for left, top, across, down in passes:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + -(-columns * bits // 8))
    return total
