"""`stoker runs`: the table of runs, in the terminal and as CSV, and what may still be billed.

Invariants: no line of the table is wider than the terminal, down to 80 columns. Text from a run
directory cannot become a control code, nor a formula of a spreadsheet.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stoker.fleet.sky.records import LAUNCHED, LAUNCHING, UNLISTED, CloudJob, UnreadableJob
from stoker.run.listing import RunSummary
from stoker.text import clock, cut, harmless_cell, plural, shown

STATES = {
    LAUNCHING: "the launch did not end; 'stoker runs --refresh' reads its state back",
    LAUNCHED: "'stoker runs --refresh' reads its state back",
    UNLISTED: "SkyPilot does not list it: look at the provider's own list",
    "STOPPED": "stopped, and its disk is billed",
}
"""States in words; others are SkyPilot's own."""


@dataclass(frozen=True)
class RunColumn:
    """A column of the table."""

    title: str
    cell: Callable[[RunSummary], str]
    is_number: bool = False


RUN = RunColumn("run", lambda run: run.name)
MODEL = RunColumn("model", lambda run: run.model)
STATE = RunColumn("state", lambda run: run.state)
BEST = RunColumn("top-1", lambda run: "-" if run.best is None else f"{run.best:.1%}", True)
EPOCHS = RunColumn("epochs", lambda run: epochs_text(run), True)
HOURS = RunColumn("hours", lambda run: f"{run.hours:,.2f}", True)
DOLLARS = RunColumn("dollars", lambda run: money(run.dollars), True)
LIMIT = RunColumn("limit", lambda run: run.limit or "-")
VERDICT = RunColumn("limit", lambda run: run.verdict or run.limit or "-")
MOST = {RUN: 40, MODEL: 24, LIMIT: 12, VERDICT: 80}
"""Columns of a text at most; longer ones are cut."""
GAP, NARROW = 2, 80
LEAST_NAME, LEAST_MODEL = 12, 8


def run_lines(runs: Sequence[RunSummary], width: int = NARROW) -> list[str]:
    """A line for each run below a heading, none wider than `width`, down to 80 columns. Wide
    screens get the epochs, and the limit in words."""
    width = max(width, NARROW)
    columns = [RUN, MODEL, STATE, BEST, HOURS, DOLLARS, LIMIT]
    if all(run.dollars is None for run in runs):
        columns.remove(DOLLARS)
    if all(not run.limit for run in runs):
        columns.remove(LIMIT)
    wide = [RUN, MODEL, STATE, BEST, EPOCHS, *columns[4:]]
    wordy = [VERDICT if column is LIMIT else column for column in wide]
    for candidate in (wide, wordy):
        if total(widths_of(candidate, runs)) <= width:
            columns = candidate
    widths = fitted(widths_of(columns, runs), width)
    lines = [joined({c: aligned(c, c.title, w) for c, w in widths.items()})]
    for run in runs:
        if run.problem:
            name = aligned(RUN, RUN.cell(run), widths[RUN]) + " " * GAP
            lines.append(name + cut(f"cannot be read: {run.problem}", width - len(name)))
        else:
            lines.append(joined({c: aligned(c, c.cell(run), w) for c, w in widths.items()}))
    return lines


def widths_of(columns: Sequence[RunColumn], runs: Sequence[RunSummary]) -> dict[RunColumn, int]:
    """How wide each column has to be."""
    widths = {}
    for column in columns:
        cells = [shown(column.cell(run)) for run in runs if not run.problem or column is RUN]
        widths[column] = min(max(map(len, [column.title, *cells])), MOST.get(column, NARROW))
    return widths


def total(widths: Mapping[RunColumn, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def fitted(widths: dict[RunColumn, int], width: int) -> dict[RunColumn, int]:
    """The widths, with names and then models made shorter where the table is too wide."""
    for column, least in ((RUN, 24), (MODEL, LEAST_MODEL), (RUN, LEAST_NAME)):
        excess = max(total(widths) - width, 0)
        widths[column] = min(widths[column], max(widths[column] - excess, least))
    return widths


def aligned(column: RunColumn, text: str, width: int) -> str:
    text = cut(text, width)
    return text.rjust(width) if column.is_number else text.ljust(width)


def joined(cells: Mapping[RunColumn, str]) -> str:
    return (" " * GAP).join(cells.values()).rstrip()


def money(dollars: float | None) -> str:
    return "-" if dollars is None else f"{dollars:,.2f}"


def epochs_text(run: RunSummary) -> str:
    """Epochs done and planned."""
    if run.epochs_done is None:
        return "-"
    return f"{run.epochs_done:.1f}/{run.epochs:g}" if run.epochs else f"{run.epochs_done:.1f}"


def billed_lines(
    jobs: Sequence[tuple[Path, CloudJob | UnreadableJob]],
    controllers: Mapping[str, str],
    now: float,
) -> list[str]:
    """What may still be billed: machines, their disks, and buckets."""
    lines = [job_line(job, now) for _, job in jobs if not is_gone(job)]
    lines += [
        f"  {shown(name)}, from which SkyPilot watches jobs: {STATES.get(state, shown(state))}"
        for name, state in controllers.items()
    ]
    buckets = sorted({job.bucket for _, job in jobs if isinstance(job, CloudJob)})
    lines += [f"  {shown(bucket)}: storage, until you delete it" for bucket in buckets]
    return ["may still be billed:", *lines] if lines else []


def is_gone(job: CloudJob | UnreadableJob) -> bool:
    return isinstance(job, CloudJob) and not job.may_be_billed


def job_line(job: CloudJob | UnreadableJob, now: float) -> str:
    if isinstance(job, UnreadableJob):
        return f"  {shown(str(job.path))} cannot be read: {shown(job.why)}"
    state = STATES.get(job.state, shown(job.state))
    if job.checked and job.state not in (LAUNCHING, LAUNCHED):
        state += f", read back {clock(now - job.checked)} ago"
    age = clock(now - job.launched)
    return f"  {shown(job.name)} ({shown(job.machine)}), launched {age} ago: {state}"


def nothing_line(folders: Sequence[Path], *, is_filtered: bool = False) -> str:
    names = " or ".join(shown(str(folder)) for folder in folders)
    return f"no run in {names}{' fits every --filter' if is_filtered else ''}"


def figures_of(
    runs: Sequence[RunSummary],
    jobs: Sequence[tuple[Path, CloudJob | UnreadableJob]],
    controllers: Mapping[str, str],
) -> dict[str, Any]:
    """Runs and jobs as plain data."""
    return {
        "runs": [run_figures(run) for run in runs],
        "jobs": [job_figures(folder, job) for folder, job in jobs],
        "controllers": dict(controllers),
    }


def run_figures(run: RunSummary) -> dict[str, Any]:
    """Everything about a run, by the name of its column."""
    return {
        "name": shown(run.name),
        "path": shown(str(run.path)),
        "model": run.model,
        "state": run.state,
        "best": run.best,
        "hours": run.hours,
        "dollars": run.dollars,
        "limit": run.limit or None,
        "verdict": run.verdict or None,
        "epochs_done": run.epochs_done,
        "epochs": run.epochs,
        "data": shown(run.data) or None,
        "recipe": run.recipe or None,
        "ranks": run.ranks,
        "last": run.last,
        "problem": run.problem or None,
    }


def csv_text(runs: Sequence[RunSummary]) -> str:
    """The runs as CSV, with a line of titles. The time of the last event is in ISO 8601."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(run_figures(RunSummary(Path(), "")))
    for run in runs:
        figures = {**run_figures(run), "last": iso_time(run.last)}
        if run.problem:
            figures |= {"state": None, "hours": None}
        writer.writerow([harmless_cell(value) for value in figures.values()])
    return out.getvalue()


def iso_time(seconds: float | None) -> str | None:
    """A time in UTC; None where it is none that a calendar has."""
    if seconds is None:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return None


def job_figures(folder: Path, job: CloudJob | UnreadableJob) -> dict[str, Any]:
    if isinstance(job, UnreadableJob):
        return {"path": shown(str(folder)), "problem": job.why, "may_be_billed": True}
    return {
        "path": shown(str(folder)),
        "name": job.name,
        "machine": job.machine,
        "state": job.state,
        "launched": job.launched,
        "checked": job.checked,
        "bucket": job.bucket,
        "may_be_billed": job.may_be_billed,
    }


def refreshed_line(count: int, gone: int) -> str:
    return f"{plural(count, 'job')} read back from SkyPilot, {gone} gone"
