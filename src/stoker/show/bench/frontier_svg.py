"""Time against dollars an epoch as a picture: which rows no other row beats in both.

Invariants: no script, no font, no address of another file. Every text is escaped. Both axes are
logarithmic where their values span more than a factor of eight, and say so. The numbers stand in
the table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from stoker.plan.bench.table import TableRow
from stoker.show.bench.columns import dollars, three_digits
from stoker.text import printable

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 84, 130, 20, 56
WIDE = 8.0
"""The factor between the smallest and the largest value from which on an axis is logarithmic."""
HUES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Colours that people with any colour vision can tell apart (Okabe and Ito), one a machine."""
LINE, LETTER = 14, 6.2
"""The height of a label, and the width of one of its letters, about, in pixels."""
MOST_LETTERS = 27


Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


class PlotAxis:
    """Where a value is on an axis of so many pixels."""

    def __init__(self, values: Sequence[float], first: float, last: float) -> None:
        low, high = min(values), max(values)
        self.is_log = low > 0 and high / low > WIDE
        self.first, self.last = first, last
        if self.is_log:
            self.low, self.high = math.log10(low) - 0.05, math.log10(high) + 0.05
        else:
            room = 0.08 * ((high - low) or high or 1.0)
            self.low, self.high = max(low - room, 0.0), high + room

    def place(self, value: float) -> float:
        scaled = math.log10(value) if self.is_log else value
        return self.first + (scaled - self.low) / (self.high - self.low) * (self.last - self.first)

    def ticks(self) -> list[float]:
        """Round values on the axis, about five."""
        if self.is_log:
            decades = range(math.floor(self.low), math.ceil(self.high) + 1)
            values = [m * 10.0**d for d in decades for m in (1, 2, 5)]
            inside = [v for v in values if self.low <= math.log10(v) <= self.high]
            return inside[:: max(len(inside) // 6, 1)]
        span = self.high - self.low
        raw = span / 5
        base = 10 ** math.floor(math.log10(raw))
        step = next(m * base for m in (1, 2, 5, 10) if m * base >= raw)
        first = math.ceil(self.low / step)
        return [n * step for n in range(first, math.floor(self.high / step) + 1)]


@dataclass(frozen=True)
class Point:
    """One row in the picture."""

    row: TableRow
    x: float
    y: float
    hue: str


def frontier_svg(rows: Sequence[TableRow], letters: Sequence[str]) -> str:
    """The picture of rows that share the work of an epoch; empty where fewer than two of them have
    a time and a price."""
    known = [
        (row, row.epoch_s, row.epoch_dollars)
        for row in rows
        if row.epoch_s is not None and row.epoch_dollars
    ]
    if len(known) < 2:
        return ""
    across = PlotAxis([s for _, s, _ in known if s], LEFT, WIDTH - RIGHT)
    upward = PlotAxis([d for _, _, d in known if d], HEIGHT - BOTTOM, TOP)
    points = [
        Point(
            row,
            across.place(s or 0.0),
            upward.place(d or 0.0),
            HUES[letters.index(row.letter) % len(HUES)],
        )
        for row, s, d in known
    ]
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" width="{WIDTH}" height="{HEIGHT}">',
            "<title>Seconds against dollars an epoch</title>",
            *axes(across, upward),
            *frontier_line(points),
            *dots(points),
            *labels(points),
            "</svg>",
        ]
    )


def axes(across: PlotAxis, upward: PlotAxis) -> list[str]:
    floor, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [f'<path class="axis" d="M{LEFT} {TOP}V{floor}H{right}"/>']
    for value in across.ticks():
        x = across.place(value)
        parts.append(f'<path class="grid" d="M{x:.1f} {TOP}V{floor}"/>')
        parts.append(text(x, floor + 18, three_digits(value), "middle"))
    for value in upward.ticks():
        y = upward.place(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>')
        parts.append(text(LEFT - 8, y + 4, dollars(value), "end"))
    scales = [" (log scale)" if axis.is_log else "" for axis in (across, upward)]
    parts.append(text((LEFT + right) / 2, HEIGHT - 14, f"seconds an epoch{scales[0]}", "middle"))
    middle = (TOP + floor) / 2
    parts.append(
        f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})">'
        f"dollars an epoch{scales[1]}</text>"
    )
    return parts


def frontier_line(points: Sequence[Point]) -> list[str]:
    """Steps between the points that no other beats."""
    best = sorted((p for p in points if p.row.on_frontier), key=lambda p: p.x)
    if len(best) < 2:
        return []
    path = f"M{best[0].x:.1f} {best[0].y:.1f}"
    path += "".join(f"H{after.x:.1f}V{after.y:.1f}" for _, after in pairwise(best))
    return [f'<path class="frontier" d="{path}"/>']


def dots(points: Sequence[Point]) -> list[str]:
    """A dot for each row, filled where it is on the frontier; its words stand on it."""
    parts = []
    for point in points:
        fill = point.hue if point.row.on_frontier else "none"
        words = (
            f"{name_of(point.row)}: {three_digits(point.row.epoch_s)} s, "
            f"{dollars(point.row.epoch_dollars)}"
        )
        parts.append(
            f'<circle cx="{point.x:.1f}" cy="{point.y:.1f}" r="5" fill="{fill}" '
            f'stroke="{point.hue}" stroke-width="2"><title>{safe(words)}</title></circle>'
        )
    return parts


def labels(points: Sequence[Point]) -> list[str]:
    """Names of the rows on the frontier beside their dots; one without room has its words alone."""
    boxes = [(p.x - 7, p.y - 7, p.x + 7, p.y + 7) for p in points]
    parts = []
    for point in sorted((p for p in points if p.row.on_frontier), key=lambda p: p.y):
        name = name_of(point.row)[:MOST_LETTERS]
        width = LETTER * len(name)
        x = point.x + 9
        for y in (point.y - 8, point.y + 14, point.y + 4):
            box = (x, y - LINE + 3, x + width, y + 3)
            if box[2] <= WIDTH and not any(overlap(box, other) for other in boxes):
                boxes.append(box)
                parts.append(text(x, y, name, "start", "small"))
                break
    return parts


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def name_of(row: TableRow) -> str:
    cell = row.row.cell
    ranks = f" x{cell.ranks}" if cell.ranks > 1 else ""
    return f"{row.letter}{ranks} b{cell.batch_size} {cell.precision}"


def text(x: float, y: float, words: str, anchor: str, style: str = "") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{safe(words)}</text>'


def safe(words: str) -> str:
    """A text that is only text."""
    return escape(printable(words))
