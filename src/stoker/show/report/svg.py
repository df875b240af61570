"""Charts as SVG, inside of figures with a legend, a data table and room for a read-out.

Invariants: colours and dashes come from classes of page.css, so that charts follow the theme, and a
line is told apart by its dashes too. Every picture has a title and a description, and a table of
its values. Pictures are complete without the script, which only reads values back from them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stoker.history.curves import Floats
from stoker.show.report.charts import (
    Bars,
    Chart,
    ChartLine,
    PageAxis,
    as_bytes,
    as_share,
)
from stoker.show.report.elements import Html, PageTable, bar_svg, cell, folded, table_html, tag

WIDTH, HEIGHT = 600, 306
LEFT, RIGHT, TOP, FLOOR = 82, 586, 14, 250
"""The sides of the plot in a picture of lines."""
MOST_MARKS = 60
MOST_ROWS = 40
"""Rows of the table behind a chart of lines."""
MOST_SPANS = 30
SPAN_HEIGHT, SPAN_BAR = 46, 14
LABELLED, NUMBERED = 24, 12
"""Classes up to which a heat map has names, and numbers in its cells."""
LEVELS = 12
"""Shades of a heat map."""
LONGEST_NAME = 16


def line_figure(chart: Chart) -> Html:
    """A chart of lines: a picture for each of its axes, of which one is shown."""
    pictures = [line_svg(chart, axis) for axis in chart.axes]
    notes = cut_notes(chart)
    return tag(
        "figure",
        tag("h3", chart.title, id=f"chart-{chart.key}"),
        legend(chart),
        tag(
            "div",
            *pictures,
            class_="plots",
            tabindex="0",
            role="group",
            aria_label=f"{chart.title}: the arrow keys read the values",
        ),
        tag("output", class_="readout", aria_live="polite"),
        *(tag("p", note, class_="soft") for note in notes),
        folded("The numbers", *(chart_table(chart, axis) for axis in chart.axes)),
        class_="chart",
    )


def legend(chart: Chart) -> Html:
    """The name of each line, with a piece of it."""
    if len(chart.series) < 2:
        return Html("")
    items = []
    for number, line in enumerate(chart.series):
        options = {"viewBox": "0 0 34 8", "aria-hidden": "true"}
        piece = tag("svg", tag("path", d="M1 4H33", class_=f"line s{number}"), **options)
        items.append(tag("li", piece, line.name))
    return tag("ul", *items, class_="legend")


def cut_notes(chart: Chart) -> list[str]:
    """What a reader must know about values that are not drawn."""
    notes = [
        f"{line.name}: {count:,} of {len(line.y):,} points are not finite (NaN or infinite); they "
        "are gaps, with crosses at the top."
        for line in chart.series
        if (count := int((~np.isfinite(line.y)).sum())) and not chart.has_pauses
    ]
    _, high = limits(chart)
    if any((line.y[np.isfinite(line.y)] > high).any() for line in chart.series):
        notes.append(f"Values above {chart.format(high)} are drawn at the top.")
    return notes


@dataclass(frozen=True)
class PlotScale:
    """Values to places in a picture, along one axis."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        return self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values from low to high, equally spaced."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [(first + n) * step for n in range(math.floor(high / step + 1e-9) - first + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Places of round numbers from one power of ten to another: of few decades 1, 2 and 5 of each,
    of many only some powers of ten."""
    first, last = math.floor(low), math.ceil(high)
    factors = (1, 2, 5) if high - low < 2.5 else (1,)
    powers = range(first, last + 1, max((last - first) // 6, 1))
    places = [power + math.log10(factor) for power in powers for factor in factors]
    return [place for place in places if low - 1e-9 <= place <= high + 1e-9]


def place_text(axis: PageAxis, value: float) -> str:
    """The number at a place of an axis."""
    return f"{10**value:.3g}" if axis.is_log else number_text(value)


def limits(chart: Chart) -> tuple[float, float]:
    """The ends of the vertical axis. A few values far above all others do not count."""
    values = [part for line in chart.series for part in (line.y, *(line.ends or ()))]
    finite = np.concatenate([part[np.isfinite(part)] for part in values] or [np.empty(0)])
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    usual = float(np.percentile(finite, 95))
    if usual > 0 and high > 5 * usual:
        high = 2 * usual
    low = min(low, 0.0) if chart.from_zero else low
    if chart.most is not None:
        high = max(high, 0.0)
        high = chart.most if high > 0.6 * chart.most else high
    if not chart.from_zero:
        margin = 0.05 * (high - low)
        low, high = max(low - margin, 0.0) if low >= 0 else low - margin, high + margin
    return widened(low, high)


def widened(low: float, high: float) -> tuple[float, float]:
    """Ends that are apart, and few enough digits away from each other."""
    if high - low <= 1e-9 * max(abs(high), abs(low), 1e-12):
        high = low + (abs(low) * 0.1 or 1.0)
    return low, high


def tick_text(chart: Chart, value: float, step: float) -> str:
    if chart.format is as_share:
        return f"{value:.0%}" if step >= 0.0099 else f"{value:.1%}"
    if chart.format is as_bytes:
        return as_bytes(value).replace(".0 ", " ")
    return number_text(value)


def number_text(value: float) -> str:
    value = 0.0 if abs(value) < 1e-12 else value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def line_svg(chart: Chart, axis: PageAxis) -> Html:
    """The lines over one axis."""
    lines = [line for line in chart.series if axis.key in line.x]
    places = np.concatenate([line.x[axis.key] for line in lines] or [np.empty(0)])
    places = places[np.isfinite(places)]
    first = float(places.min()) if len(places) else 0.0
    first = first if axis.is_log else min(first, 0.0)
    across = PlotScale(*widened(first, float(places.max()) if len(places) else 1.0), LEFT, RIGHT)
    up = PlotScale(*limits(chart), FLOOR, TOP)
    name = f"{chart.key}-{axis.key}"
    form = "share" if chart.format is as_share else "number"
    form = "bytes" if chart.format is as_bytes else form
    return tag(
        "svg",
        tag("title", f"{chart.title}, over {axis.label.lower()}", id=f"{name}-title"),
        tag("desc", described(chart), id=f"{name}-desc"),
        *axis_parts(chart, axis, across, up),
        *(
            drawn_line(line, axis.key, number, (across, up), not chart.has_pauses)
            for number, line in enumerate(chart.series)
            if axis.key in line.x
        ),
        tag("path", class_="cursor"),
        class_=f"plot axis-{axis.key}",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        data_x=f"{across.low!r} {across.high!r} {LEFT} {RIGHT}",
        data_y=f"{up.low!r} {up.high!r} {FLOOR} {TOP}",
        data_form=form,
        data_label=axis.label,
        data_log=axis.is_log,
    )


def described(chart: Chart) -> str:
    """The chart in words: what it shows, and where each line begins and ends."""
    parts = [chart.description]
    for line in chart.series:
        finite = line.y[np.isfinite(line.y)]
        if len(finite):
            first, last = chart.format(finite[0]), chart.format(finite[-1])
            low, high = chart.format(finite.min()), chart.format(finite.max())
            parts.append(f"{line.name}: from {first} to {last}, lowest {low}, highest {high}.")
    return " ".join(parts)


def axis_parts(chart: Chart, axis: PageAxis, across: PlotScale, up: PlotScale) -> list[Html]:
    """Grid, ticks and the label of the horizontal axis."""
    parts = []
    marks = ticks(up.low, up.high, 4)
    step = marks[1] - marks[0] if len(marks) > 1 else 1.0
    for value in marks:
        y = f"{up.at(value):.1f}"
        parts.append(tag("path", d=f"M{LEFT} {y}H{RIGHT}", class_="grid"))
        text = tick_text(chart, value, step)
        parts.append(tag("text", text, x=LEFT - 8, y=y, dy="0.35em", text_anchor="end"))
    for value in (log_ticks if axis.is_log else ticks)(across.low, across.high):
        x = f"{across.at(value):.1f}"
        parts.append(tag("path", d=f"M{x} {FLOOR}v5", class_="grid"))
        text = place_text(axis, value)
        anchor = "end" if across.at(value) > RIGHT - 20 else "middle"
        parts.append(tag("text", text, x=x, y=FLOOR + 23, text_anchor=anchor))
    middle = (LEFT + RIGHT) // 2
    label = tag("text", axis.label, x=middle, y=HEIGHT - 7, text_anchor="middle", class_="soft")
    return [*parts, label]


def drawn_line(
    line: ChartLine, key: str, number: int, scales: tuple[PlotScale, PlotScale], marks_gaps: bool
) -> Html:
    """One line with its marks; crosses where a value is not finite."""
    path, crosses, marks = list[str](), list[str](), list[Html]()
    is_open = False
    (across, up), x = scales, line.x[key]
    known = np.isfinite(x)
    finite = np.isfinite(line.y) & known
    shows_marks = line.has_marks and len(line.y) <= MOST_MARKS
    for place in range(len(line.y)):
        if not known[place]:
            is_open = False
            continue
        left = f"{across.at(float(x[place])):.1f}"
        if not finite[place]:
            if marks_gaps:
                crosses.append(f"M{left} {TOP}m-3 -3l6 6m0 -6l-6 6")
            is_open = False
            continue
        height = f"{up.at(float(line.y[place])):.1f}"
        path.append(f"{'L' if is_open else 'M'}{left} {height}")
        following = place + 1 < len(line.y) and bool(finite[place + 1])
        if shows_marks or (not is_open and not following):
            marks.append(tag("circle", cx=left, cy=height, r="3"))
        is_open = True
    parts = [tag("path", d="".join(path), class_=f"line s{number}", data_name=line.name)]
    if bars := interval_path(line, x, across, up):
        parts.append(tag("path", d=bars, class_=f"interval s{number}"))
    if marks:
        parts.append(tag("g", *marks, class_=f"marks s{number}"))
    if crosses:
        some = crosses[:: -(-len(crosses) // MOST_MARKS)]
        parts.append(tag("path", d="".join(some), class_=f"cross s{number}"))
    return Html("".join(parts))


def interval_path(line: ChartLine, x: Floats, across: PlotScale, up: PlotScale) -> str:
    """A bar from end to end of each interval of a line."""
    low, high = line.ends or (np.empty(0), np.empty(0))
    known = [n for n in range(len(low)) if np.isfinite([low[n], high[n], x[n]]).all()]
    return "".join(
        f"M{across.at(float(x[n])):.1f} {up.at(float(low[n])):.1f}V{up.at(float(high[n])):.1f}"
        for n in known
    )


def chart_table(chart: Chart, axis: PageAxis) -> Html:
    """The values of a chart, at most MOST_ROWS of each line."""
    rows: list[tuple[object, ...]] = []
    for line in chart.series:
        if axis.key not in line.x:
            continue
        count = len(line.y)
        chosen = np.unique(np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(int))
        rows += [
            (line.name, place_text(axis, float(line.x[axis.key][n])), point_text(chart, line, n))
            for n in (chosen if count else [])
            if math.isfinite(line.x[axis.key][n])
        ]
    caption = f"{chart.title}, over {axis.label.lower()}"
    columns = ("line", axis.label.lower(), chart.y_label)
    table = PageTable(caption, columns, rows, frozenset((1, 2)))
    return tag("div", table_html(table), class_=f"axis-{axis.key}")


def point_text(chart: Chart, line: ChartLine, place: int) -> str:
    """A value of a line, with its interval where it has one."""
    text = value_text(chart, line.y[place])
    if line.ends is None or not math.isfinite(line.ends[0][place]):
        return text
    return f"{text} ({' to '.join(value_text(chart, end[place]) for end in line.ends)})"


def value_text(chart: Chart, value: float) -> str:
    if math.isnan(value):
        return "not a number"
    return chart.format(value) if math.isfinite(value) else "infinite"


def bars_figure(bars: Bars) -> Html:
    """Bars in a table: the label, the bar, its texts, and what it means."""
    most = max((row.value for row in bars.rows), default=0.0) or 1.0
    rows = []
    for row in bars.rows:
        meaning = [tag("span", row.meaning, class_="meaning")] if row.meaning else []
        rows.append(
            tag(
                "tr",
                tag("th", row.label, *meaning, scope="row"),
                tag("td", bar_svg(row.value / most), class_="barcell"),
                *(cell(text, True) for text in row.texts),
            )
        )
    heads = [tag("th", name, scope="col", class_="n") for name in bars.columns]
    label, place = tag("th", "part", scope="col"), tag("td", class_="barcell")
    head = tag("thead", tag("tr", label, place, *heads))
    caption = tag("caption", bars.title)
    return tag("table", caption, head, tag("tbody", *rows), class_="bars")
