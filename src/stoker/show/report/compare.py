"""The page that compares several runs: a table, their curves, what differs, where time went.

Invariants: each run is read once, and only what the page shows of it stays in memory. A run that
cannot be read is a row with its reason. At most MOST_DRAWN runs are drawn; every run is in the
table.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from stoker.history.curves import Floats
from stoker.history.differences import (
    RunDifference,
    RunTraits,
    differences,
    traits_from,
    value_text,
)
from stoker.intervals import Share, share_of
from stoker.price.hourly import HourlyPrice
from stoker.price.ledger.rank_time import CATEGORIES
from stoker.run.directory import Run
from stoker.run.listing import name_of
from stoker.show.cost import LABELS as COST_LABELS
from stoker.show.cost import money
from stoker.show.differences import effects
from stoker.show.report.blocks import short_name, stack_figure
from stoker.show.report.charts import (
    DOLLARS,
    EPOCHS,
    HOURS,
    MOST_POINTS,
    AxisValues,
    Chart,
    ChartLine,
    PageAxis,
    as_number,
    as_share,
    axis_values,
    binned,
    time_unit,
)
from stoker.show.report.elements import (
    Html,
    PageTable,
    SortedText,
    section,
    table_html,
    tag,
)
from stoker.show.report.facts import UNREADABLE, RunFacts, facts_of
from stoker.show.report.page import curves_section, document, made
from stoker.show.report.speed import moment
from stoker.text import clock, one_line, plural, shown

MOST_DRAWN = 12
"""Runs that are drawn: more lines cannot be told apart."""
MOST_RUNS = 50
"""Runs of a folder that are compared."""
MOST_COLUMNS = 4
"""Runs up to which each has a column in the table of differences."""
MOST_MARKED = 6
"""Runs up to which the points of their evaluations are marked."""
MOST_NAMES, MOST_DIFFERENCES = 8, 200
LONGEST_VALUE, LONGEST_NAME, LONGEST_REASON = 200, 60, 40
CURVES: Mapping[str, tuple[str, str, str]] = {
    "accuracy": (
        "Accuracy",
        "The share of right answers in each evaluation of each run.",
        "share of images",
    ),
    "evaluation-loss": ("Loss in evaluations", "The loss of each evaluation.", "loss"),
    "loss": (
        "Loss in training",
        "The training loss of each run, the mean over all its ranks, under augmentation.",
        "loss",
    ),
    "rate": ("Learning rate", "The learning rate of each step of each run.", "learning rate"),
}
"""Title, description and label of each chart, by its key."""


@dataclass(frozen=True)
class ComparedRun:
    """What the page shows of one run."""

    name: str
    path: Path
    problem: str = ""
    """Why it cannot be read; empty where it can."""
    traits: RunTraits | None = None
    """None where it cannot be read."""
    best: Share | None = None
    dollars: float | None = None
    """None where no price is known."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Of its machines, by category."""
    curves: Mapping[str, ChartLine] = field(default_factory=dict)
    """By the key of the chart. Their places on the axis of time are seconds."""

    @property
    def epoch_dollars(self) -> float | None:
        done = self.traits.epochs_done if self.traits else None
        return self.dollars / done if done and self.dollars is not None else None


def compared_runs(
    paths: Sequence[Path], price: HourlyPrice | None = None, now: float | None = None
) -> list[ComparedRun]:
    """What is compared of runs, each read once. Never raises for what is in them."""
    now = time.time() if now is None else now
    names = unique_names(paths)
    pairs = zip(paths, names, strict=True)
    return [compared_run(path, name, price, now, len(paths) == 2) for path, name in pairs]


def compared_run(
    path: Path, name: str, price: HourlyPrice | None, now: float, keeps_rows: bool
) -> ComparedRun:
    """What is compared of one run; with `keeps_rows`, its rows stay in memory for a closer look."""
    run = Run(path)
    try:
        _ = run.record
        facts = facts_of(run, price, now)
        traits = replace(traits_from(facts.history, facts.verdict), state=facts.state)
        if not keeps_rows:
            traits = replace(traits, run=run)
        best = facts.history.best
        return ComparedRun(
            name,
            path,
            traits=traits,
            best=share_of(best["top1"], best["images"]) if best else None,
            dollars=facts.cost.total if facts.is_priced else None,
            seconds=facts.cost.seconds if facts.cost.machines else {},
            curves=curves_of(facts, name),
        )
    except UNREADABLE as error:
        reason = one_line(str(error)).removeprefix(shown(str(path))).lstrip("/: ")
        return ComparedRun(name, path, problem=reason or type(error).__name__)


def unique_names(paths: Sequence[Path]) -> list[str]:
    """The names of runs: those of two with one name have their folders in front, or a number."""
    names = [short_name(name_of(path), LONGEST_NAME) for path in paths]
    counts = Counter(names)
    for place, path in enumerate(paths):
        if counts[names[place]] > 1:
            folder = short_name(path.absolute().parent.name, LONGEST_NAME // 2)
            names[place] = f"{folder}/{names[place]}"
    counts, numbers = Counter(names), Counter[str]()
    for place, name in enumerate(names):
        if counts[name] > 1:
            numbers[name] += 1
            names[place] = f"{name} ({numbers[name]})"
    return names


def curves_of(facts: RunFacts, name: str) -> dict[str, ChartLine]:
    """The curves of a run by the keys of CURVES; none where the length of an epoch is unknown."""
    history, values = facts.history, axis_values(facts)
    if not values.samples:
        return {}
    curve, evaluations = history.sums.curve(MOST_POINTS), history.evaluations
    losses = [event for event in evaluations if "loss" in event]
    rates = binned([float(point.position) for point in history.points])
    lines = {
        "accuracy": evaluation_line(name, evaluations, values, "top1"),
        "evaluation-loss": evaluation_line(name, losses, values, "loss"),
        "loss": ChartLine(name, places_of(values, curve.position), curve.loss),
        "rate": ChartLine(
            name, places_of(values, rates), binned([point.lr for point in history.points])
        ),
    }
    return {key: line for key, line in lines.items() if len(line.y)}


def evaluation_line(
    name: str, events: Sequence[Mapping[str, float]], values: AxisValues, key: str
) -> ChartLine:
    """A number of each evaluation; a count as the share of its images."""
    numbers = [event[key] / (event["images"] if key == "top1" else 1) for event in events]
    positions = binned([float(event["position"]) for event in events])
    return ChartLine(name, places_of(values, positions), binned(numbers), has_marks=True)


def places_of(values: AxisValues, positions: Floats) -> dict[str, Floats]:
    """The places of positions on each axis; seconds on that of time."""
    places = values.of(positions)
    return {**places, HOURS: places[HOURS] * values.unit[0]}


def drawn_runs(runs: Sequence[ComparedRun]) -> list[ComparedRun]:
    """The runs that are drawn, in their order: of many, those with the best accuracy."""
    known = [run for run in runs if run.curves]
    known.sort(key=lambda run: -run.best.share if run.best else 1.0)
    names = {run.name for run in known[:MOST_DRAWN]}
    return [run for run in runs if run.name in names]


def comparison_charts(runs: Sequence[ComparedRun]) -> list[Chart]:
    """The charts of CURVES with a line for each run, without those that have no value."""
    every = [line for run in runs for line in run.curves.values()]
    unit_s, unit = time_unit(max((float(line.x[HOURS].max()) for line in every), default=0.0))
    axes = [PageAxis(EPOCHS, "Epochs"), PageAxis(HOURS, f"{unit} of all attempts")]
    if any(DOLLARS in line.x for line in every):
        axes.append(PageAxis(DOLLARS, "US dollars"))
    charts = []
    for key, (title, description, label) in CURVES.items():
        if not any(key in run.curves for run in runs):
            continue
        lines = (run.curves.get(key, no_line(run.name)) for run in runs)
        series = tuple(
            replace(
                line,
                x={**line.x, HOURS: line.x[HOURS] / unit_s},
                has_marks=line.has_marks and len(runs) <= MOST_MARKED,
            )
            for line in lines
        )
        chart = Chart(key, title, description, label, tuple(axes), series, from_zero=key == "rate")
        if key == "accuracy":
            chart = replace(chart, format=as_share, most=1.0, from_zero=True)
        charts.append(chart)
    return [chart for chart in charts if not chart.is_empty or "loss" in chart.key]


def no_line(name: str) -> ChartLine:
    """The line of a run without values: so that the others have one colour in all charts."""
    return ChartLine(name, {EPOCHS: np.empty(0), HOURS: np.empty(0)}, np.empty(0))


def comparison_page(
    runs: Sequence[ComparedRun],
    price: HourlyPrice | None = None,
    now: float | None = None,
    left_out: int = 0,
) -> Html:
    """The page of some runs; so many others of their folder were left out."""
    opening = [tag("p", f"As of {moment(time.time() if now is None else now)}.", class_="soft")]
    if left_out:
        words = f"The folder holds {plural(left_out, 'other run')}, left out here: name those to "
        opening.append(tag("p", f"{words}compare.", class_="soft"))
    return document(
        f"Comparison of {plural(len(runs), 'run')}", opening, comparison_parts(runs, price)
    )


def comparison_parts(
    runs: Sequence[ComparedRun], price: HourlyPrice | None = None, title: str = "How did they go?"
) -> list[Html]:
    """The parts of a page about some runs; `title` is that of the curves."""
    drawn = drawn_runs(runs)
    note = ""
    if (count := sum(bool(run.curves) for run in runs)) > len(drawn):
        note = f"{len(drawn)} of {count} runs with curves are drawn, those with the best accuracy; "
        note += "the others are in the table alone."
    return [
        made(lambda: run_section(runs)),
        made(lambda: curves_section(comparison_charts(drawn), title, note)),
        made(lambda: difference_section(runs, price)),
        made(lambda: time_section(drawn, note)),
    ]


def run_section(runs: Sequence[ComparedRun]) -> Html:
    """The table of the runs, and why some cannot be read."""
    reasons = [tag("li", f"{run.name}: {run.problem}") for run in runs if run.problem]
    words = [tag("p", "These cannot be read:"), tag("ul", *reasons)] if reasons else []
    return section("Which runs?", table_html(run_table(runs), class_="sortable"), *words)


def run_table(runs: Sequence[ComparedRun]) -> PageTable:
    """A row for each run, also for those that cannot be read."""
    columns = (
        *("run", "model", "state", "best top-1", "95 % interval", "epochs", "time"),
        *("images a second", "dollars", "dollars an epoch", "limit"),
    )
    rows = [run_row(run) for run in runs]
    return PageTable(plural(len(runs), "run"), columns, rows, frozenset(range(3, 10)))


def run_row(run: ComparedRun) -> tuple[object, ...]:
    traits = run.traits
    if traits is None:
        return run.name, "-", f"unreadable: {short_name(run.problem, LONGEST_REASON)}", *["-"] * 8
    best, done = run.best, traits.epochs_done
    speed, epoch = traits.images_per_s, run.epoch_dollars
    return (
        run.name,
        traits.model,
        traits.state,
        f"{best.share:.2%}" if best else "-",
        f"{best.low:.1%} to {best.high:.1%}" if best else "-",
        "-" if done is None else f"{as_number(done)} of {traits.epochs:g}",
        SortedText(clock(traits.total_s), traits.total_s) if traits.total_s else "-",
        f"{speed:,.0f}" if speed else "-",
        "-" if run.dollars is None else SortedText(money(run.dollars), run.dollars),
        "-" if epoch is None else SortedText(money(epoch), epoch),
        traits.limit or "-",
    )


def difference_section(runs: Sequence[ComparedRun], price: HourlyPrice | None) -> Html:
    """The settings that differ between the runs; of two, also their results."""
    title = "What differs?"
    known = [(run, run.traits) for run in runs if run.traits]
    if len(known) < 2:
        return section(title, tag("p", "Fewer than two runs can be read."))
    traits = [each for _, each in known]
    rows = differences(traits)
    parts = [tag("p", "No setting differs.")]
    if rows:
        parts = [table_html(difference_table(rows, [run.name for run, _ in known]))]
    if len(rows) > MOST_DIFFERENCES:
        parts.append(tag("p", f"And {len(rows) - MOST_DIFFERENCES:,} more.", class_="soft"))
    if len(known) == 2:
        texts = effect_rows(traits[0], traits[1], price)
        words = f"What came of it, from {known[0][0].name} to {known[1][0].name}"
        table = table_html(PageTable(words, ("result", "difference"), texts))
        nothing = tag("p", "The results do not differ, or cannot be compared.")
        parts.append(table if texts else nothing)
    return section(title, *parts)


def effect_rows(
    one: RunTraits, other: RunTraits, price: HourlyPrice | None
) -> list[tuple[str, str]]:
    """How the results of two runs differ, a row for each result."""
    rows: list[tuple[str, str]] = []
    for name, text in effects(one, other, price):
        rows.append((name, text) if name else (rows[-1][0], f"{rows.pop()[1]}; {text}"))
    return rows


def difference_table(rows: Sequence[RunDifference], names: Sequence[str]) -> PageTable:
    """Each setting that differs: with a column for each of a few runs, else with the runs that have
    each value."""
    has_columns = len(names) <= MOST_COLUMNS
    cells: list[tuple[object, ...]] = []
    for row in rows[:MOST_DIFFERENCES]:
        if has_columns:
            values = tuple("-" if v is None else setting_text(v) for v in row.values)
            cells.append((row.group, row.name, *values))
            continue
        groups = [
            f"{setting_text(row.values[places[0]])}: {names_text([names[p] for p in places])}"
            for places in row.groups
        ]
        cells.append((row.group, row.name, "; ".join(groups)))
    columns = tuple(names) if has_columns else ("value: the runs that have it",)
    return PageTable("Settings that differ", ("group", "setting", *columns), cells)


def setting_text(value: object) -> str:
    text = value_text(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def names_text(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def time_section(runs: Sequence[ComparedRun], note: str = "") -> Html:
    """Where the time of the machines went: a bar for each run, and a table of the same."""
    title = "Where did time go?"
    timed = [(run.name, run.seconds) for run in runs if sum(run.seconds.values()) > 0]
    if not timed:
        return section(title, tag("p", "Nowhere yet: no time is on record."))
    labels = {name: COST_LABELS.get(name, name) for name in CATEGORIES}
    heading = "Time of the machines, by what it was for"
    return section(title, stack_figure("time", heading, timed, labels), note=note)
