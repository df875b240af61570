"""The table of a sweep."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.fleet.grid.cell import Plan
from stoker.fleet.grid.directory import (
    BLOCKED,
    DAMAGED,
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    Grid,
    Status,
)
from stoker.intervals import Mean
from stoker.study.results import damaged, training_result
from stoker.study.sweep import ENOUGH, Sweep, SweepRow, is_settled, label_of
from stoker.text import clock, plural, printable

MOST_ROWS = 20
WORDS = {
    DONE: "done",
    RUNNING: "running",
    WAITING: "waiting",
    FAILED: "failed",
    BLOCKED: "blocked by a failed one",
    DAMAGED: "damaged",
}


def status_line(status: Status) -> str:
    """How many cells are done, and what the others are."""
    total = len(status.states)
    parts = [f"{count:,} {WORDS[state]}" for state in WORDS if (count := status.count(state))]
    return f"{plural(total, 'cell')}: {', '.join(parts)}"


def other_lines(status: Status) -> list[str]:
    """What else the folder holds."""
    lines = []
    if status.others:
        lines.append(
            f"also here, not in the table: {plural(len(status.others), 'finished cell')} "
            "with other settings"
        )
    if status.older:
        lines.append(
            f"also here, not in the table: {plural(len(status.older), 'finished cell')} "
            "of another version of Stoker, which may train differently"
        )
    return lines


def table_lines(table: Sequence[SweepRow], every: bool = False) -> list[str]:
    """The rows, best first."""
    shown_rows = table if every else table[:MOST_ROWS]
    width = max([len("settings"), *(len(printable(label_of(row.settings))) for row in shown_rows)])
    rungs = len({row.epoch for row in table if row.top1}) > 1
    epoch = f"{'epoch':>7}" if rungs else ""
    lines = [f"  {'settings':<{width}}{epoch}    top-1   {'95 % interval':<16}   runs"]
    for row in shown_rows:
        name = f"  {printable(label_of(row.settings)):<{width}}"
        epoch = f"{row.epoch:7g}" if rungs else ""
        runs = f"{row.done} of {row.planned}" if row.done < row.planned else f"{row.done}"
        mean = f"{row.top1.mean:.2%}" if row.top1 else "-"
        lines.append(f"{name}{epoch}  {mean:>7}   {interval_text(row.top1):<16}   {runs}")
    if len(table) > len(shown_rows):
        lines.append(f"  and {len(table) - len(shown_rows):,} more; --all shows them")
    return lines


def interval_text(mean: Mean | None) -> str:
    """The interval of shares; a dash where there are too few values to tell."""
    if mean is None or mean.half is None or mean.count < ENOUGH:
        return "-"
    return f"{max(0.0, mean.low):.1%} to {min(1.0, mean.high):.1%}"


def conclusion(table: Sequence[SweepRow], grid: Grid, status: Status) -> list[str]:
    """What the results say and what they do not, and where the best run is."""
    if not table or table[0].top1 is None:
        return []
    best = table[0]
    assert best.top1 is not None
    equal = [row for row in table if row.rung == best.rung and row.top1 == best.top1]
    others = f" and {plural(len(equal) - 1, 'other')} the same" if len(equal) > 1 else ""
    lines = [f"best: {printable(label_of(best.settings))}{others}, {best.top1.mean:.2%}"]
    lines.append(f"  its run: {grid.cell_path(best_cell(best, grid)) / 'work' / 'run'}")
    if not status.is_over or any(row.done < row.planned for row in table):
        lines.append("not all cells are done: the best may change")
    if len(table) > 1 and min(row.done for row in table) < ENOUGH:
        lines.append(
            f"fewer than {ENOUGH} runs of each: their spread is not known; "
            f"add --set seed=0..{ENOUGH - 1}"
        )
    elif len(table) > 1 and not is_settled(table):
        lines.append("its interval overlaps that of the second: more seeds would tell them apart")
    return lines


def failure_lines(plan: Plan, grid: Grid, status: Status) -> list[str]:
    """Each failed cell with the last line that it printed; each one with a damaged result."""
    lines = []
    for cell, state in status.states.items():
        if state == DAMAGED:
            lines.append(f"damaged: {printable(plan.cells[cell].label)}: {damaged(grid, cell)}")
        if state != FAILED:
            continue
        last = grid.failures(cell)[-1]
        words = [w for w in str(last.get("output", "")).splitlines() if w.strip()]
        reason = printable(words[-1]) if words else f"exit code {last.get('code')}"
        label = printable(plan.cells[cell].label)
        lines += [f"failed: {label}: {reason}", f"  its output: {grid.cell_path(cell) / 'log.txt'}"]
    return lines


def spent_seconds(grid: Grid, status: Status) -> float:
    """What the cells have taken, by the records of their workers."""
    return sum(
        float(end.get("seconds", 0.0))
        for cell, state in status.states.items()
        if state != WAITING
        for end in grid.ends(cell)
    )


def cost_lines(grid: Grid, status: Status) -> list[str]:
    """A line with the time in cells; none before the first."""
    spent_s = spent_seconds(grid, status)
    return [f"time in cells: {clock(spent_s)}"] if spent_s else []


def best_cell(row: SweepRow, grid: Grid) -> str:
    """The cell with the most right answers among the replicates of a row; of equal ones the
    first."""
    return max(row.cells, key=lambda cell: training_result(grid, cell).top1)


def figures(
    sweep: Sweep, table: Sequence[SweepRow], grid: Grid, status: Status
) -> dict[str, object]:
    """All numbers of a sweep, for other programs."""
    return {
        "cells": [
            {
                "id": cell,
                "label": sweep.plan.cells[cell].label,
                "state": state,
                "result": grid.result(cell) if state == DONE else None,
            }
            for cell, state in status.states.items()
        ],
        "rows": [
            {
                "settings": row.settings,
                "epoch": row.epoch,
                "top1": row.top1.mean if row.top1 else None,
                "half_interval_95": row.top1.half if row.top1 else None,
                "done": row.done,
                "planned": row.planned,
                "cells": list(row.cells),
            }
            for row in table
        ],
        "seconds_in_cells": spent_seconds(grid, status),
    }
