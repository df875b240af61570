"""What a person sees while a benchmark runs: a line for each cell, then the table and what next."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from stoker.plan.bench.cells import BenchCell
from stoker.plan.bench.reproduce import Reproduction
from stoker.plan.bench.result import BenchResult
from stoker.plan.bench.rows import BenchRow
from stoker.plan.bench.table import table_of
from stoker.show.bench.columns import three_digits
from stoker.show.bench.terminal import table_lines
from stoker.text import clock, plural, printable, seconds, shown, size


def terminal_width() -> int:
    return shutil.get_terminal_size((80, 24)).columns


def begin_lines(result: BenchResult, cells: Sequence[BenchCell], out: Path) -> list[str]:
    """What will be measured, on which machine."""
    done = len(cells) - len(set(result.missing()) & set(cells))
    kept = f", {done} of them in the file already" if done else ""
    limits = result.limits
    return [
        f"{plural(len(cells), 'cell')}{kept}; each {plural(limits.repeats, 'repeat')} of "
        f"{plural(limits.steps, 'step')}, at most {clock(limits.time_limit_s)}, in processes of "
        f"its own; rows go to {shown(str(out))}",
        f"{printable(result.machine)}; {plural(result.data.images, 'image')} of "
        f"{plural(result.data.classes, 'class')}",
    ]


def row_line(row: BenchRow, result: BenchResult, cells: Sequence[BenchCell]) -> str:
    """One row as it ends."""
    number = len(cells) - len(set(result.missing()) & set(cells))
    head = f"{number}/{len(cells)}  {row.cell.label()}"
    if row.figures is None or row.speed is None:
        return f"{head}: {row.outcome} after {clock(row.seconds)} ({row.reason})"
    return (
        f"{head}: {three_digits(row.speed.median)} images/s "
        f"({three_digits(row.speed.low)} to {three_digits(row.speed.high)}), "
        f"limit: {printable(row.figures.limit) or 'unknown'}, {size(row.figures.memory_bytes)}; "
        f"warm-up {seconds(row.figures.warm_up_s)}, in all {clock(row.seconds)}"
    )


def closing_lines(result: BenchResult, cells: Sequence[BenchCell], out: Path) -> list[str]:
    """The table, the fastest row, where the file is, and the next command."""
    lines = ["", *table_lines(table_of([result]), terminal_width())]
    lines += [
        f"most images/s: {row.cell.label()}{verdict_of_row(row)}"
        for row in best_rows(result, cells)
    ]
    return [
        *lines,
        f"the file: {shown(str(out))}",
        f"next: stoker bench table {shown(str(out))} [FILE ...] --html bench.html, or "
        f"stoker bench reproduce {shown(str(out))}",
    ]


def best_rows(result: BenchResult, cells: Sequence[BenchCell]) -> list[BenchRow]:
    """The row with the highest median of each model and image size: models are not compared."""
    best: dict[tuple[str, int], BenchRow] = {}
    for row in result.rows:
        key = (row.cell.model, row.cell.image_size)
        if row.cell in cells and row.speed:
            other = best.get(key)
            if other is None or (other.speed and row.speed.median > other.speed.median):
                best[key] = row
    return list(best.values())


def verdict_of_row(row: BenchRow) -> str:
    return f"; {printable(row.figures.verdict)}" if row.figures and row.figures.verdict else ""


def difference_lines(different: Sequence[str]) -> list[str]:
    """What of the machine or its software is not as it was."""
    if not different:
        return ["the same machine and software as in the file"]
    return [f"differs from the file: {reason}" for reason in different]


def reproduction_line(one: Reproduction) -> str:
    """Whether one row holds."""
    return (
        f"{one.before.cell.label()}: {in_words(one.before)} in the file, {in_words(one.now)} now: "
        f"{one.answer}"
    )


def in_words(row: BenchRow) -> str:
    if row.speed is None:
        return row.outcome
    low, high = three_digits(row.speed.low), three_digits(row.speed.high)
    return f"{three_digits(row.speed.median)} images/s ({low} to {high})"
