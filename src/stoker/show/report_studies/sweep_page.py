"""The page about a sweep: what was tried, the table, accuracy over each value, the best runs.

Invariants: means and intervals are those that `stoker sweep` prints. Cells that are not done are
named. The page is made of the parts of a report of runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from stoker.fleet.grid.cell import Plan
from stoker.fleet.grid.directory import DONE, Grid, Status
from stoker.price.hourly import HourlyPrice
from stoker.run.kinds import is_number
from stoker.show.report.charts import OWN, Chart, ChartLine, PageAxis, as_share
from stoker.show.report.compare import MOST_DRAWN, ComparedRun, compared_runs, comparison_parts
from stoker.show.report.elements import Html, PageTable, SortedText, section, table_html, tag
from stoker.show.report.page import document, made
from stoker.show.report.speed import moment
from stoker.show.report.svg import line_figure
from stoker.show.study.sweep import (
    WORDS,
    best_cell,
    conclusion,
    cost_lines,
    failure_lines,
    interval_text,
    other_lines,
    status_line,
)
from stoker.study.results import study_status
from stoker.study.sweep import ENOUGH, Sweep, SweepRow, label_of, rows, text_of
from stoker.text import plural, shown

MOST_ROWS, MOST_VALUES, MOST_CELLS = 1000, 40, 200
LOG_FACTOR = 20.0
"""An axis of values whose ends are further apart is logarithmic."""


def best_runs(
    table: Sequence[SweepRow], grid: Grid, price: HourlyPrice | None = None
) -> list[ComparedRun]:
    """The best run of each of the best rows, at most as many as are drawn."""
    done = [row for row in table if row.cells][:MOST_DRAWN]
    paths = [grid.cell_path(best_cell(row, grid)) / "work" / "run" for row in done]
    return compared_runs(paths, price)


def sweep_page(
    sweep: Sweep, grid: Grid, price: HourlyPrice | None = None, now: float | None = None
) -> tuple[Html, list[ComparedRun]]:
    """The page of a sweep, and the runs that it draws. Raises BadRequest where a result is
    damaged."""
    status = study_status(grid, sweep.plan)
    table = rows(sweep, grid, status)
    runs = best_runs(table, grid, price)
    opening = [
        tag("p", shown(str(grid.path)), class_="path"),
        tag("p", f"As of {moment(time.time() if now is None else now)}.", class_="soft"),
        *(tag("p", capital(line.strip())) for line in conclusion(table, grid, status)),
        *summary_lines(grid, status),
    ]
    parts = [
        made(lambda: tried_section(sweep)),
        made(lambda: row_section(table)),
        made(lambda: value_section(table)),
        *comparison_parts(runs, price, "How did the best go?"),
        made(lambda: other_section(sweep.plan, grid, status)),
    ]
    return document(f"Sweep of {plural(len(table), 'setting')}", opening, parts), runs


def summary_lines(grid: Grid, status: Status) -> list[Html]:
    """How many cells are done, what else the folder holds, and the time that cells took."""
    lines = [status_line(status), *other_lines(status), *cost_lines(grid, status)]
    return [tag("p", f"{capital(line)}.", class_="soft") for line in lines]


def capital(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}"


def tried_section(sweep: Sweep) -> Html:
    """The keys that differ between cells, with their values."""
    points = list(sweep.cells.values())
    keys = list(points[0]) if points else []
    cells = [(key, values_text([point[key] for point in points])) for key in keys]
    if not cells:
        return section("What was tried?", tag("p", "One recipe: no setting differs."))
    table = PageTable("Settings", ("key", "values"), cells)
    return section("What was tried?", table_html(table))


def values_text(values: Sequence[object]) -> str:
    """The values, each once; numbers in order."""
    each = list({text_of(value): value for value in values}.items())
    if all(is_number(value) for _, value in each):
        each.sort(key=lambda pair: float(str(pair[1])))
    more = f" and {len(each) - MOST_VALUES} more" if len(each) > MOST_VALUES else ""
    return ", ".join(text for text, _ in each[:MOST_VALUES]) + more


def row_section(table: Sequence[SweepRow]) -> Html:
    """The rows, best first, as the verb prints them."""
    cells = [
        (
            label_of(row.settings),
            f"{row.epoch:g}" if row.top1 else "-",
            SortedText(f"{row.top1.mean:.2%}", row.top1.mean) if row.top1 else "-",
            interval_text(row.top1),
            f"{row.done} of {row.planned}",
        )
        for row in table[:MOST_ROWS]
    ]
    columns = ("settings", "epoch", "top-1, mean", "95 % interval", "runs done")
    caption = f"{plural(len(table), 'setting')}, best first"
    if len(table) > MOST_ROWS:
        caption += f"; {MOST_ROWS:,} are shown"
    page_table = PageTable(caption, columns, cells, frozenset((1, 2, 3, 4)))
    note = f"An interval needs at least {ENOUGH} runs of the same settings, with other seeds."
    return section("What came of it?", table_html(page_table, class_="sortable"), note=note)


def value_section(table: Sequence[SweepRow]) -> Html:
    """Accuracy over each key that differs: a chart where its values are numbers, else a table."""
    title = "What does each setting change?"
    known = [row for row in table if row.top1]
    keys = list(table[0].settings) if table else []
    if not known or not keys:
        return section(title, tag("p", "Nothing can be said yet."))
    figures, tables = [], []
    for number, key in enumerate(keys):
        if all(is_number(row.settings[key]) for row in known):
            figures.append(line_figure(value_chart(number, key, known)))
        else:
            tables.append(table_html(category_table(key, known)))
    charts = [tag("div", *figures, class_="charts")] if figures else []
    note = "Each point is the best mean of settings with this value; a bar is its 95 % interval."
    return section(title, *charts, *tables, note=note)


def value_chart(number: int, key: str, known: Sequence[SweepRow]) -> Chart:
    """The best accuracy at each number of a key, with its interval. The axis is logarithmic where
    the ends are far apart."""
    groups: dict[float, list[SweepRow]] = {}
    for row in known:
        groups.setdefault(float(row.settings[key]), []).append(row)
    values = sorted(groups)
    best = [max(row.top1.mean for row in groups[value] if row.top1) for value in values]
    low, high = zip(*(low_and_high(groups[value]) for value in values), strict=True)
    is_log = values[0] > 0 and values[-1] / values[0] > LOG_FACTOR
    places = np.log10(values) if is_log else np.array(values)
    ends = np.array(low, float), np.array(high, float)
    name = "best mean top-1"
    line = ChartLine(name, {OWN: places}, np.array(best), has_marks=True, ends=ends)
    words = f"The best mean top-1 among all settings with each value of {key}."
    texts = (f"value-{number}", f"Accuracy over {key}", words, "share of images")
    axes = (PageAxis(OWN, key, is_log),)
    return Chart(*texts, axes, (line,), as_share, from_zero=False, has_pauses=True)


def low_and_high(known: Sequence[SweepRow]) -> tuple[float, float]:
    """The interval of the best of some rows; NaN where there are too few runs."""
    best = max((row.top1 for row in known if row.top1), key=lambda mean: mean.mean)
    if best.half is None or best.count < ENOUGH:
        return math.nan, math.nan
    return max(best.low, 0.0), min(best.high, 1.0)


def category_table(key: str, known: Sequence[SweepRow]) -> PageTable:
    """The best row of each value of a key that is no number."""
    best: dict[str, SweepRow] = {}
    for row in known:  # best first
        best.setdefault(text_of(row.settings[key]), row)
    cells = [
        (value, f"{row.top1.mean:.2%}" if row.top1 else "-", interval_text(row.top1))
        for value, row in list(best.items())[:MOST_VALUES]
    ]
    columns = (key, "best mean top-1", "95 % interval")
    return PageTable(f"Accuracy over {key}", columns, cells, frozenset((1, 2)))


def other_section(plan: Plan, grid: Grid, status: Status) -> Html:
    """The cells that are not done, with what the failed ones printed last."""
    title = "Which cells are not done?"
    others = [(cell, state) for cell, state in status.states.items() if state != DONE]
    if not others:
        return section(title, tag("p", "None: all are done."))
    cells = [(plan.cells[cell].label, WORDS[state]) for cell, state in others[:MOST_CELLS]]
    table = PageTable(plural(len(others), "cell"), ("cell", "state"), cells)
    failures = [tag("li", line) for line in failure_lines(plan, grid, status)[:MOST_CELLS]]
    return section(title, table_html(table), *([tag("ul", *failures)] if failures else []))
