"""The page about a ticket study: the verdict, accuracy over the weights kept, the numbers.

Invariants: numbers and verdict are those that `stoker tickets` prints. Nothing is measured here.
"""

from __future__ import annotations

import math
import time

import numpy as np

from stoker.fleet.grid.directory import Grid
from stoker.intervals import Mean
from stoker.show.report.charts import OWN, Chart, ChartLine, PageAxis, as_share
from stoker.show.report.elements import Html, PageTable, section, table_html, tag
from stoker.show.report.page import document, made
from stoker.show.report.speed import moment
from stoker.show.report.svg import line_figure
from stoker.show.report_studies.sweep_page import other_section, summary_lines
from stoker.show.study.ticket_svg import curves_of
from stoker.show.study.tickets import accuracy, conclusion
from stoker.study.results import study_status
from stoker.study.sweep import ENOUGH
from stoker.study.tickets.plan import TicketStudy, percent
from stoker.study.tickets.results import Level, TicketResults, results_of
from stoker.text import plural, shown

MOST_LINES = 12
"""Lines that can be told apart."""
SPEED = (
    "A mask sets weights to zero and leaves every kernel its shape: unstructured sparsity does not "
    "speed up a model here. 'stoker tickets' measures the file and the speed of one ticket when "
    "all cells are done."
)


def ticket_page(
    study: TicketStudy, grid: Grid, now: float | None = None
) -> tuple[Html, list[Chart]]:
    """The page of a ticket study, and its chart where there is one. Raises BadRequest where a
    result is damaged."""
    status = study_status(grid, study.plan)
    results = results_of(study, grid, status)
    verdict = conclusion(results) if results.dense else ["not evidence of a ticket: no result yet"]
    opening = [
        tag("p", shown(str(grid.path)), class_="path"),
        tag("p", f"As of {moment(time.time() if now is None else now)}.", class_="soft"),
        *(tag("p", f"{line[:1].upper()}{line[1:]}.", class_="answer") for line in verdict),
        *summary_lines(grid, status),
    ]
    charts = [chart] if (chart := ticket_chart(results)).series else []
    parts = [
        made(lambda: curve_section(results, charts)),
        made(lambda: level_section(results)),
        section("Are tickets faster?", tag("p", SPEED)),
        made(lambda: other_section(study.plan, grid, status)),
    ]
    levels = plural(len(study.design.keeps), "level")
    return document(f"Ticket study of {levels}", opening, parts), charts


def curve_section(results: TicketResults, charts: list[Chart]) -> Html:
    """Accuracy over the share of weights kept."""
    title = "How well do tickets train?"
    if not charts:
        return section(title, tag("p", "No pruned run is done yet."))
    note = f"Bars are 95 % intervals; they need at least {ENOUGH} runs."
    left_out = len(curves_of(results)) + bool(results.dense) - MOST_LINES
    if left_out > 0:
        note += f" {plural(left_out, 'line')} more are in the table alone."
    figure = line_figure(charts[0])
    return section(title, tag("div", figure, class_="charts"), note=note)


def ticket_chart(results: TicketResults) -> Chart:
    """The accuracy of tickets and of their controls; without lines where none is done."""
    keeps = np.log10([100 * keep for keep in results.design.keeps])
    lines = []
    for name, _, _, points in curves_of(results):
        means = [mean for _, mean in points]
        lines.append(mean_line(name, keeps[[number for number, _ in points]], means))
    if lines and results.dense:
        ends = np.unique(keeps[[-1, 0]])
        lines.insert(0, mean_line("dense", ends, [results.dense] * len(ends)))
    words = "Mean top-1 of tickets and of their controls, over the share of kernel weights kept."
    texts = ("tickets", "Accuracy over the weights kept", words, "share of images")
    axes = (PageAxis(OWN, "Weights kept in %", is_log=True),)
    series = tuple(lines[:MOST_LINES])
    return Chart(*texts, axes, series, as_share, from_zero=False, has_pauses=True)


def mean_line(name: str, places: np.ndarray, means: list[Mean]) -> ChartLine:
    """A line of means, with the intervals of those with enough runs."""
    known = [mean.half is not None and mean.count >= ENOUGH for mean in means]
    pairs = list(zip(means, known, strict=True))
    low = np.array([max(mean.low, 0.0) if is_known else math.nan for mean, is_known in pairs])
    high = np.array([min(mean.high, 1.0) if is_known else math.nan for mean, is_known in pairs])
    values = np.array([mean.mean for mean in means])
    return ChartLine(name, {OWN: places}, values, has_marks=True, ends=(low, high))


def level_section(results: TicketResults) -> Html:
    """A row for each level and rewind point."""
    dense = f"Dense: {accuracy(results.dense)} % top-1" if results.dense else "Dense: not done"
    by_layer = ("by layer",) if results.design.by_layer else ()
    columns = ("kept", "from epoch", "ticket", "random mask", *by_layer, "re-initialised", "wins")
    rows = [level_row(results, level) for level in results.levels]
    caption = f"Top-1 in %, mean of {plural(results.design.replicates, 'run')}"
    table = PageTable(caption, columns, rows, frozenset(range(len(columns) - 1)))
    note = f"{dense}. A ticket wins where its interval lies above those of both controls."
    return section("What are the numbers?", table_html(table, class_="sortable"), note=note)


def level_row(results: TicketResults, level: Level) -> tuple[str, ...]:
    replicates = results.design.replicates
    means = [level.ticket, level.random]
    means += [level.by_layer] if results.design.by_layer else []
    texts = [
        accuracy(mean) + (f" ({mean.count})" if mean and mean.count < replicates else "")
        for mean in (*means, level.reinit)
    ]
    wins = "yes" if level.wins(replicates) else "no"
    return percent(level.keep), f"{level.rewind:g}", *texts, wins
