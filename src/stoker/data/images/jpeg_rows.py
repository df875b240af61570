"""Cut the rows that a crop needs out of a JPEG, without decoding it.

A JPEG may be written in intervals of whole rows of blocks, parted by restart markers: each can be
decoded without those before it. `add_table` notes in the header where they begin; `cut_rows` makes
a smaller JPEG of the header and the intervals that are needed.

Invariants: a JPEG with a table is a plain JPEG for every other reader. The pixels of the rows asked
for are those of a full decode, bit for bit. A table that does not fit its bytes counts as none:
then the image is decoded in full.

    SOI, JFIF, APP15 (table), tables, frame, scan: interval, RST0, interval, RST1, ..., EOI
"""

from __future__ import annotations

import re
import struct
from itertools import pairwise

import numpy as np

Cut = tuple[memoryview, int, int]

TABLE_AT = 20
"""After SOI and the JFIF segment, which must come first."""
TABLE = struct.Struct(">2sH8sIIH")
"""Marker, length, name; where the frame's height stands, where the scan begins, rows of pixels an
interval; then the beginning of each interval as 32 bits."""
APP15, NAME = b"\xff\xef", b"stoker\0\1"
SOF0, DRI, SOS, RST0 = 0xC0, 0xDD, 0xDA, 0xD0
EOI = b"\xff\xd9"
RESTARTS = re.compile(rb"\xff[\xd0-\xd7]")
BLOCK = 8
HEAD, TAIL = 1024, 512
"""Bytes looked at. They are copied first, by numpy, which lets go of the interpreter lock for more
than 500: the first touch of a mapped file may wait for a disk, and must not hold up all threads."""
SPARE = 16
"""Rows of pixels kept on each side: smooth upsampling looks at the next row of colours, which at
a quarter of the size is eight pixels away."""


def claims_table(jpeg: bytes) -> bool:
    """Whether a reader would take a JPEG for one with a table. One that a file brought along is
    not to be believed."""
    return jpeg[TABLE_AT + 4 : TABLE_AT + 12] == NAME


def add_table(jpeg: bytes) -> bytes:
    """The same JPEG with a table of its intervals; as it is where they are not whole rows."""
    found = intervals(jpeg)
    if found is None:
        return jpeg
    frame, step, begins = found
    size = TABLE.size + 4 * len(begins)
    if size > 0xFFFF or jpeg[2:4] != b"\xff\xe0" or jpeg[4:6] != b"\0\x10":
        return jpeg
    head = TABLE.pack(APP15, size - 2, NAME, frame + size, begins[0] + size, step)
    table = head + struct.pack(f">{len(begins)}I", *(begin + size for begin in begins))
    return jpeg[:TABLE_AT] + table + jpeg[TABLE_AT:]


def intervals(jpeg: bytes) -> tuple[int, int, list[int]] | None:
    """Of a baseline JPEG with restart markers: where the height stands, rows of pixels an interval,
    where the intervals begin."""
    at, frame, blocks_an_interval = 2, 0, 0
    height = width = across = down = 0
    while jpeg[at + 1] != SOS:
        if jpeg[at + 1] == SOF0:
            frame = at + 5
            height, width, components = struct.unpack_from(">HHB", jpeg, frame)
            # A single component is not interleaved: its sampling does not count.
            sampling = jpeg[at + 11] if components > 1 else 0x11
            across, down = (sampling >> 4) * BLOCK, (sampling & 15) * BLOCK
        elif jpeg[at + 1] == DRI:
            blocks_an_interval = int.from_bytes(jpeg[at + 4 : at + 6])
        at += 2 + int.from_bytes(jpeg[at + 2 : at + 4])
    scan = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4])
    if not frame or not blocks_an_interval:
        return None
    rows, rest = divmod(blocks_an_interval, -(-width // across))
    begins = [scan, *(found.end() for found in RESTARTS.finditer(jpeg, scan))]
    if rest or len(begins) != -(-height // (rows * down)):
        return None
    return frame, rows * down, begins


def cut_rows(data: memoryview, height: int, top: int, bottom: int) -> Cut | None:
    """A JPEG of at least these rows of pixels, its height and its first row; None where there is no
    table, it does not fit, or nothing would be saved."""
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
    # A file that was cut off below is left to the full decode, which refuses it.
    if begins[-1] > len(data) or bytes(stored[-TAIL:].copy()[-2:]) != EOI:
        return None
    part = np.empty(scan + begins[-1] - begins[0], np.uint8)
    part[:scan] = stored[:scan]
    part[scan:] = stored[begins[0] : begins[-1]]
    rows = min(last * step, height) - first * step
    restarts = [(begin - begins[0] + scan - 1, number) for number, begin in enumerate(begins[1:-1])]
    whole = patched(part.data, frame, (height, rows), restarts, first, last < count)
    return (part.data, rows, first * step) if whole else None


def patched(
    part: memoryview,
    frame: int,
    heights: tuple[int, int],
    restarts: list[tuple[int, int]],
    first: int,
    ends_early: bool,
) -> bool:
    """Write height, markers and end as the part needs them, if they are what the table says."""
    if part[frame] << 8 | part[frame + 1] != heights[0]:
        return False
    part[frame], part[frame + 1] = heights[1] >> 8, heights[1] & 255
    for at, number in restarts:
        if part[at] != RST0 | (first + number) & 7 or part[at - 1] != 0xFF:
            return False
        part[at] = RST0 | number & 7
    if ends_early:
        if part[-1] != RST0 | (first + len(restarts)) & 7 or part[-2] != 0xFF:
            return False
        part[-1] = EOI[1]
    return True
