"""The charts of a run as pictures for slides, drawn with matplotlib, which the extra `report` has.

Invariants: matplotlib is imported here alone, when pictures are asked for, and never opens a
window. The charts are those of the page. A picture appears complete or not at all.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker.commit import write_bytes
from stoker.errors import BadRequest
from stoker.show.report.blocks import (
    LABELLED,
    MOST_SPANS,
    heat_map,
    short_name,
    time_line,
)
from stoker.show.report.charts import (
    Bars,
    Chart,
    HeatMap,
    PageAxis,
    TimeLine,
    curve_charts,
    part_bars,
    time_unit,
)
from stoker.show.report.facts import RunFacts
from stoker.show.report.svg import log_ticks, place_text, tick_text
from stoker.text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES, DOTS = (8.0, 4.5), 200
"""Twice the dots of a screen: 1600 x 900 pixels."""
COLOURS = (
    *("#0b5cad", "#b04a00", "#0a7350", "#8a3aa8", "#a8321b", "#006f80", "#6b5d00", "#4a5568"),
    *("#b0206a", "#4a7a00", "#5847c9", "#8a5a2b"),
)
DASHES = ("-", "--", ":", "-.")
STYLE: Any = {
    "font.size": 13,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.usetex": False,
    "text.parse_math": False,
}


def require_matplotlib() -> None:
    """Raise BadRequest where matplotlib is not installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise BadRequest("--png needs matplotlib: pip install matplotlib") from error


def write_pictures(facts: RunFacts, folder: Path) -> list[Path]:
    """Write a PNG for each chart of a run. Returns the files. Raises BadRequest without
    matplotlib, OSError where a file cannot be written."""
    return write_figures(partial(figures, facts), folder)


def write_line_pictures(charts: Sequence[Chart], folder: Path) -> list[Path]:
    """Write a PNG for each axis of charts of lines, as `write_pictures` does."""
    return write_figures(partial(line_figures, charts), folder)


def write_figures(make: Callable[[], Iterator[tuple[str, Figure]]], folder: Path) -> list[Path]:
    """Write the figures that a function makes, by their names. Returns the files."""
    require_matplotlib()
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # A script that the font lacks is drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        for name, figure in make():
            data = io.BytesIO()
            figure.savefig(data, format="png", dpi=DOTS)
            write_bytes(folder / f"{name}.png", data.getvalue())
            files.append(folder / f"{name}.png")
    return files


def figures(facts: RunFacts) -> Iterator[tuple[str, Figure]]:
    """Each chart that has something to show, with the name of its file."""
    yield from line_figures(curve_charts(facts))
    if (bars := part_bars(facts)).rows:
        yield bars.key, drawn_bars(bars)
    if heat := heat_map(facts):
        yield heat.key, drawn_heat(heat)
    if (line := time_line(facts)).spans:
        yield line.key, drawn_spans(line)


def line_figures(charts: Sequence[Chart]) -> Iterator[tuple[str, Figure]]:
    """Each chart of lines over each of its axes, with the name of its file."""
    for chart in charts:
        for axis in chart.axes:
            yield f"{chart.key}-{axis.key}", drawn_lines(chart, axis)


def canvas(title: str, inches: tuple[float, float] = INCHES) -> tuple[Figure, Axes]:
    """An empty picture. Without pyplot: no window and no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = NewFigure(figsize=inches, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(printable(title)[:60], loc="left", fontweight="bold")
    return figure, axes


def drawn_lines(chart: Chart, axis: PageAxis) -> Figure:
    figure, axes = canvas(chart.title)
    key = axis.key
    for number, line in enumerate(chart.series):
        if key not in line.x:
            continue
        values = np.where(np.isfinite(line.y), line.y, np.nan)
        marker = "o" if line.has_marks and len(line.y) <= 60 else None
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        axes.plot(
            line.x[key],
            values,
            label=printable(line.name),
            color=colour,
            linestyle=dash,
            marker=marker,
            markersize=4,
            linewidth=2,
        )
        if line.ends is not None:
            axes.vlines(line.x[key], *line.ends, color=colour, linewidth=2, alpha=0.6)
    axes.set_xlabel(printable(axis.label))
    if axis.is_log:
        axes.set_xticks(log_ticks(*axes.get_xlim()))
        axes.xaxis.set_major_formatter(lambda value, _: place_text(axis, value))
    axes.set_ylabel(chart.y_label)
    axes.yaxis.set_major_formatter(lambda value, _: tick_text(chart, value, 0.05))
    if chart.from_zero:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if len(chart.series) > 1:
        axes.legend(frameon=False, fontsize=13 if len(chart.series) < 6 else 9)
    return figure


def drawn_bars(bars: Bars) -> Figure:
    figure, axes = canvas(bars.title)
    rows = bars.rows[::-1]
    most = max(row.value for row in rows)
    axes.barh([row.label for row in rows], [row.value for row in rows], color=COLOURS[0])
    for place, row in enumerate(rows):
        axes.text(row.value + 0.01 * most, place, "   ".join(row.texts), va="center")
    axes.set_xlim(0, 1.3 * most)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    return figure


def drawn_heat(heat: HeatMap) -> Figure:
    figure, axes = canvas(heat.title, (8.0, 7.0))
    count = len(heat.names)
    extent = (0.5, count + 0.5, count + 0.5, 0.5)
    picture = axes.imshow(heat.shares, cmap="Blues", vmin=0, vmax=1, extent=extent)
    options: dict[str, Any] = {"label": "share of the class", "shrink": 0.8}
    figure.colorbar(picture, ax=axes, **options)
    axes.set_xlabel("answer of the model")
    axes.set_ylabel("class")
    if count <= LABELLED:
        names = [short_name(name) for name in heat.names]
        axes.set_xticks(range(1, count + 1), names, rotation=60, ha="right", fontsize=10)
        axes.set_yticks(range(1, count + 1), names, fontsize=10)
    return figure


def drawn_spans(line: TimeLine) -> Figure:
    spans = line.spans[-MOST_SPANS:]
    figure, axes = canvas(line.title, (8.0, max(1.5 + 0.55 * len(spans), 3.0)))
    begin = min(span.begin for span in spans)
    unit_s, unit = time_unit(max(span.end for span in spans) - begin)
    for place, span in enumerate(spans):
        left, width = (span.begin - begin) / unit_s, (span.end - span.begin) / unit_s
        kept = width * (1 - span.redone_share)
        colour = COLOURS[2] if span.is_whole else COLOURS[1]
        axes.barh(place, kept, left=left, height=0.4, color=colour)
        axes.barh(
            place,
            width - kept,
            left=left + kept,
            height=0.4,
            color="white",
            edgecolor=COLOURS[1],
            hatch="////",
        )
        axes.text(0, place - 0.38, printable(span.label)[:80], va="bottom", fontsize=11)
    axes.set_ylim(len(spans) - 0.5, -0.9)
    axes.set_yticks([])
    axes.set_xlabel(f"{unit.lower()} since the first event")
    return figure
