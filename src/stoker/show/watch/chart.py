"""Charts of text: a curve of braille dots, two by four in each character, between two axes.

Invariants: a chart has exactly the columns and rows that were requested. A value that is not a
number leaves a gap. Nothing here knows colours: `style` is passed on to the curve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bit of each dot in a braille character, by column and row."""
BLANK = 0x2800
LARGEST = 1e100
"""A value beyond this is no number: a run that diverges goes through it on the way to infinity."""
ROOM_A_TICK = 3
"""Rows for each label of the y-axis."""

Values = Sequence[float]
Format = Callable[[float], str]


class Canvas:
    """Dots on so many columns and rows of characters. The origin is at the bottom left."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.width, self.height = columns * 2, rows * 4
        self._cells = [[0] * columns for _ in range(rows)]

    def dot(self, x: int, y: int) -> None:
        if 0 <= x < self.width and 0 <= y < self.height:
            row, bit = divmod(self.height - 1 - y, 4)
            self._cells[row][x // 2] |= DOTS[x % 2][bit]

    def line(self, begin: tuple[int, int], end: tuple[int, int]) -> None:
        across, up = end[0] - begin[0], end[1] - begin[1]
        count = max(abs(across), abs(up), 1)
        for number in range(count + 1):
            x = begin[0] + round(across * number / count)
            self.dot(x, begin[1] + round(up * number / count))

    def lines(self) -> list[str]:
        return ["".join(chr(BLANK + c) if c else " " for c in row) for row in self._cells]


@dataclass(frozen=True)
class ChartAxis:
    """A range of values, with the values that are labelled."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float, count: int) -> int:
        """Which of so many dots a value is at; values outside go to the nearest end."""
        share = (value - self.low) / (self.high - self.low)
        return round(min(max(share, 0.0), 1.0) * (count - 1))


def axis_of(values: Values, most: int) -> ChartAxis:
    """An axis over all values, with two to `most` ticks at round numbers."""
    low, high = min(values), max(values)
    if high - low <= max(abs(high), abs(low)) * 1e-6:
        margin = max(abs(high), abs(low)) * 0.1 or 1.0
        low, high = low - margin, high + margin
    step = step_for((high - low) / most)
    while len(ticks := ticks_in(low, high, step)) > most:
        step = step_for(step * 1.01)
    while len(ticks) < 2:
        step /= 2 if len(ticks_in(low, high, step / 2)) > 1 else 5
        ticks = ticks_in(low, high, step)
    return ChartAxis(low, high, ticks)


def step_for(least: float) -> float:
    """The smallest of 1, 2, 5, 10, 20 and so on that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= least)


def ticks_in(low: float, high: float, step: float) -> tuple[float, ...]:
    """The multiples of a step from `low` to `high`."""
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(number * step for number in range(first, last + 1))


def number_text(value: float) -> str:
    """A number for an axis: 0.35, 2.5, 40, 1.2k or 3M."""
    for limit, unit in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else 1e6):.3g}{unit}"
    return f"{value:.0e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"


@dataclass(frozen=True)
class Frame:
    """How a chart is drawn."""

    width: int
    height: int
    """With the two rows of the x-axis."""
    style: str = ""
    y_text: Format = number_text
    x_text: Format = number_text
    x_range: tuple[float, float] | None = None
    """The first and the last x; those of the points where it is None."""
    marks_points: bool = False
    """Whether each point is marked: for a few points, far apart."""
    empty: str = "no step yet"
    """What a chart without points says."""


def chart(x: Values, y: Values, frame: Frame) -> list[Text]:
    """The lines of a chart. Without a finite value, its middle says so."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if abs(a) < LARGEST]
    finite = [(a, b) for a, b in points if abs(b) < LARGEST]
    rows = max(frame.height - 2, 1)
    if not finite:
        return _empty(frame, frame.empty if not points else "not a number")
    ys = axis_of([b for _, b in finite], max(rows // ROOM_A_TICK + 1, 2))
    labels = [frame.y_text(tick) for tick in ys.ticks]
    margin = max(map(len, labels))
    columns = max(frame.width - margin - 1, 1)
    first, last = frame.x_range or (finite[0][0], finite[-1][0])
    xs = ChartAxis(first, last if last > first else first + 1, ())
    canvas = Canvas(columns, rows)
    _draw(canvas, points, xs, ys, frame.marks_points)
    by_row = {rows - 1 - ys.place(t, rows): text for t, text in zip(ys.ticks, labels, strict=True)}
    lines = []
    for row, dots in enumerate(canvas.lines()):
        label = by_row.get(row, "")
        line = Text(f"{label:>{margin}}{'┤' if label else '│'}")
        lines.append(line.append(dots, frame.style))
    lines.append(Text(f"{'':>{margin}}└{'─' * columns}"))
    ends = first, (first + last) / 2, last
    return [*lines, Text(" " * (margin + 1) + _spread([frame.x_text(e) for e in ends], columns))]


def _draw(
    canvas: Canvas, points: Sequence[tuple[float, float]], xs: ChartAxis, ys: ChartAxis, marks: bool
) -> None:
    previous: tuple[int, int] | None = None
    for a, b in points:
        if not abs(b) < LARGEST:
            previous = None
            continue
        place = xs.place(a, canvas.width), ys.place(b, canvas.height)
        canvas.line(previous or place, place)
        if marks:
            for across, up in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                canvas.dot(place[0] + across, place[1] + up)
        previous = place


def _spread(labels: Sequence[str], width: int) -> str:
    """Labels at the left, in the middle and at the right; only the ends where they do not fit."""
    left, middle, right = labels
    if len(left) + len(right) + 1 > width:
        return right.rjust(width)[-width:]
    line = left + " " * (width - len(left) - len(right)) + right
    begin = (width - len(middle)) // 2
    if begin > len(left) and begin + len(middle) < width - len(right) and middle != left:
        line = line[:begin] + middle + line[begin + len(middle) :]
    return line


def _empty(frame: Frame, words: str) -> list[Text]:
    lines = [Text("│" + " " * (frame.width - 1)) for _ in range(max(frame.height - 2, 1))]
    words = words[: max(frame.width - 2, 0)]
    lines[len(lines) // 2] = Text(f"│ {words}".ljust(frame.width), "dim")
    return [*lines, Text("└" + "─" * (frame.width - 1)), Text(" " * frame.width)]
