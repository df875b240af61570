"""Cut the rows that a crop needs out of a JPEG, without decoding it.

A JPEG may be written in intervals of whole rows of blocks, separated by restart markers: each can
be decoded without those before it. `add_table` stores their offsets in the header; `cut_rows` makes
a smaller JPEG of the header and the intervals that are needed.

Invariants: a JPEG with a table is a plain JPEG for every other reader. The pixels of the requested
rows are those of a full decode, bit for bit. A table that does not match the file is ignored, and
the image is decoded in full.

    SOI, JFIF, APP15 (table), tables, frame, scan: interval, RST0, interval, RST1, ..., EOI
"""

from __future__ import annotations

import re
import struct
from itertools import pairwise

import numpy as np

Cut = tuple[memoryview, int, int]

TABLE_AT = 20
"""Offset of the table: after SOI and the JFIF segment, which must come first."""
TABLE = struct.Struct(">2sH8sIIH")
"""Marker, length, name; offset of the frame's height, offset of the scan, rows of pixels per
interval. The offset of each interval follows, in 32 bits."""
APP15, NAME = b"\xff\xef", b"stoker\0\1"
SOF0, DRI, SOS, RST0 = 0xC0, 0xDD, 0xDA, 0xD0
EOI = b"\xff\xd9"
RESTARTS = re.compile(rb"\xff[\xd0-\xd7]")
BLOCK = 8
HEAD, TAIL = 1024, 512
"""Bytes that are examined. numpy copies them first, and releases the interpreter lock for more than
500 bytes: the first access to a mapped file may wait for a disk, and must not block all threads."""
SPARE = 16
"""Rows of pixels kept on each side: smooth upsampling reads up to eight pixels further."""


def claims_table(jpeg: bytes) -> bool:
    """Whether a JPEG seems to have a table: that of a file that we did not write is never used."""
    return jpeg[TABLE_AT + 4 : TABLE_AT + 12] == NAME


def add_table(jpeg: bytes) -> bytes:
    """A JPEG with a table of its intervals added; unchanged where they are not whole rows."""
    layout = intervals(jpeg)
    if layout is None:
        return jpeg
    frame, step, begins = layout
    size = TABLE.size + 4 * len(begins)
    if size > 0xFFFF or jpeg[2:4] != b"\xff\xe0" or jpeg[4:6] != b"\0\x10":
        return jpeg
    head = TABLE.pack(APP15, size - 2, NAME, frame + size, begins[0] + size, step)
    table = head + struct.pack(f">{len(begins)}I", *(begin + size for begin in begins))
    return jpeg[:TABLE_AT] + table + jpeg[TABLE_AT:]


def intervals(jpeg: bytes) -> tuple[int, int, list[int]] | None:
    """Offset of the height, rows of pixels per interval, offsets of the intervals; None for a JPEG
    that is not baseline or has no whole rows between restart markers."""
    at, frame, interval_blocks = 2, 0, 0
    height = width = across = down = 0
    while jpeg[at + 1] != SOS:
        if jpeg[at + 1] == SOF0:
            frame = at + 5
            height, width, components = struct.unpack_from(">HHB", jpeg, frame)
            # A single component is not interleaved: its sampling has no effect.
            sampling = jpeg[at + 11] if components > 1 else 0x11
            across, down = (sampling >> 4) * BLOCK, (sampling & 15) * BLOCK
        elif jpeg[at + 1] == DRI:
            interval_blocks = int.from_bytes(jpeg[at + 4 : at + 6])
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4])
    scan = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4])
    if not frame or not interval_blocks:
        return None
    rows, rest = divmod(interval_blocks, -(-width // across))
    begins = [scan, *(match.end() for match in RESTARTS.finditer(jpeg, scan))]
    if rest or len(begins) != -(-height // (rows * down)):
        return None
    return frame, rows * down, begins


def cut_rows(data: memoryview, height: int, top: int, bottom: int) -> Cut | None:
    """A JPEG of at least these rows of pixels, its height and its first row; None where all
    intervals are needed or no table matches the file."""
    if len(data) < HEAD:
        return None
    stored = np.frombuffer(data, np.uint8)
    head = stored[:HEAD].copy().data
    marker, size, name, frame, scan, step = TABLE.unpack_from(head, TABLE_AT)
    if marker != APP15 or name != NAME or step < BLOCK or step % BLOCK:
        return None
    count = (size + 2 - TABLE.size) // 4
    table_end = TABLE_AT + TABLE.size + 4 * count
    if count != -(-height // step) or not table_end < frame < scan - 2 or table_end > HEAD:
        return None
    first = max(top - SPARE, 0) // step
    last = min(-(-(bottom + SPARE) // step), count)
    if last - first == count or not first < last:
        return None
    begins = struct.unpack_from(
        f">{min(last + 1, count) - first}I", head, table_end - 4 * (count - first)
    )
    if last == count:
        begins = (*begins, len(data))
    if begins[0] < scan or any(after - before < 2 for before, after in pairwise(begins)):
        return None
    # A truncated file is left to the full decode, which refuses it.
    if begins[-1] > len(data) or bytes(stored[-TAIL:].copy()[-2:]) != EOI:
        return None
    part = np.empty(scan + begins[-1] - begins[0], np.uint8)
    part[:scan] = stored[:scan]
    part[scan:] = stored[begins[0] : begins[-1]]
    rows = min(last * step, height) - first * step
    patches = [
        (begin - begins[0] + scan - 1, RST0 | (first + number) & 7, RST0 | number & 7)
        for number, begin in enumerate(begins[1:-1])
    ]
    if last < count:
        patches.append((len(part) - 1, RST0 | (last - 1) & 7, EOI[1]))
    whole = patched(part.data, frame, (height, rows), patches)
    return (part.data, rows, first * step) if whole else None


def patched(
    part: memoryview, frame: int, heights: tuple[int, int], patches: list[tuple[int, int, int]]
) -> bool:
    """Patch the height and some bytes (offset, old, new); False where an old one is not there."""
    if part[frame] << 8 | part[frame + 1] != heights[0]:
        return False
    part[frame], part[frame + 1] = heights[1] >> 8, heights[1] & 255
    for offset, old, new in patches:
        if part[offset] != old or part[offset - 1] != 0xFF:
            return False
        part[offset] = new
    return True
