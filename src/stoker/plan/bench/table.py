"""Results of several machines as one table: what may be compared is, and nothing else.

Invariants: rows are compared within one job alone: the same model, image size, batch, precision,
recipe and set. Two rows differ only where their intervals part and each has enough repeats. The
frontier has the rows that no other row of the same model and set beats in both time and dollars;
there is no single winner.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.commit import sha256_json
from stoker.plan.bench.consistency import precision_notes, speedup_notes
from stoker.plan.bench.result import BenchResult
from stoker.plan.bench.rows import BenchRow, differs

FASTEST, HIGHEST, SAME, UNKNOWN = "fastest", "highest", "same", "?"
"""How a row compares within its job: faster than every other by their intervals; of the highest
median, though the interval of another overlaps; overlapping with that one; too few repeats to tell.
A row that is slower has the share instead."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CELL_KEYS = ("image_size", "batch_size", "amp", "phases", "model_file")
"""Keys of a recipe that a cell sets, or that do not change what is computed."""


@dataclass(frozen=True)
class TableRow:
    """One row of one machine."""

    letter: str
    """Of its machine, in the legend."""
    result: BenchResult
    row: BenchRow
    compared: str
    """FASTEST, HIGHEST, SAME, UNKNOWN, or such as `-12%`; empty without another row."""
    on_frontier: bool

    @property
    def epoch_s(self) -> float | None:
        return self.row.epoch_s(self.result.data.images)

    @property
    def epoch_dollars(self) -> float | None:
        return self.row.epoch_dollars(self.result.data.images, self.result.dollars_per_hour)


@dataclass(frozen=True)
class BenchTable:
    """All rows, and what must be known to read them."""

    machines: Sequence[tuple[str, BenchResult]]
    """Each machine with its letter."""
    rows: Sequence[TableRow]
    notes: Sequence[str]
    """Figures that need an explanation."""


def table_of(results: Sequence[BenchResult]) -> BenchTable:
    """The table of some results, in the order of the files."""
    machines = [(letter_of(number), result) for number, result in enumerate(results)]
    pairs = [(letter, result, row) for letter, result in machines for row in result.rows]
    jobs: defaultdict[str, list[BenchRow]] = defaultdict(list)
    for _, result, row in pairs:
        jobs[job_of(result, row)].append(row)
    points = {
        (letter, row.cell): (
            row.epoch_s(result.data.images),
            row.epoch_dollars(result.data.images, result.dollars_per_hour),
        )
        for letter, result, row in pairs
    }
    groups: defaultdict[str, list[Any]] = defaultdict(list)
    for letter, result, row in pairs:
        groups[group_of(result, row)].append((letter, row.cell))
    frontier = {
        key
        for keys in groups.values()
        for key, kept in zip(keys, on_frontier([points[key] for key in keys]), strict=True)
        if kept
    }
    rows = [
        TableRow(
            letter,
            result,
            row,
            compared_with(row, jobs[job_of(result, row)]),
            (letter, row.cell) in frontier,
        )
        for letter, result, row in pairs
    ]
    return BenchTable(machines, rows, notes_of(machines))


def letter_of(number: int) -> str:
    """A, B, ... Z, AA, AB, ..."""
    text = ""
    while number >= 0:
        text = LETTERS[number % 26] + text
        number = number // 26 - 1
    return text


def recipe_key(values: Mapping[str, Any]) -> str:
    """A hash of a recipe without what a cell sets."""
    kept = {name: value for name, value in sorted(values.items()) if name not in CELL_KEYS}
    return sha256_json(kept)


def group_of(result: BenchResult, row: BenchRow) -> str:
    """What rows share whose time and dollars can be weighed: the work of an epoch."""
    parts = [
        row.cell.model,
        row.cell.image_size,
        recipe_key(result.recipes[row.cell.model]),
        result.data.fingerprint,
    ]
    return sha256_json(parts)


def job_of(result: BenchResult, row: BenchRow) -> str:
    """What rows share that are compared: also the batch and the precision."""
    return sha256_json([group_of(result, row), row.cell.batch_size, row.cell.precision])


def compared_with(row: BenchRow, job: Sequence[BenchRow]) -> str:
    """How a row compares with the one of the highest median of its job; empty where it is alone."""
    rows = [one for one in job if one.speed is not None]
    if row.speed is None or len(rows) < 2:
        return ""
    best = max(rows, key=lambda one: one.speed.median if one.speed else 0.0)
    if best is row:
        return FASTEST if all(differs(row, one) for one in rows if one is not row) else HIGHEST
    different = differs(row, best)
    if different is None or best.speed is None:
        return UNKNOWN
    return f"{row.speed.median / best.speed.median - 1:.0%}" if different else SAME


def on_frontier(points: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Whether each (seconds, dollars) is beaten by no other: not slower and dearer, nor equal in
    one and worse in the other. A point without a price or a time is not on the frontier."""
    known = [(s, d) for s, d in points if s is not None and d is not None]
    return [
        seconds is not None
        and dollars is not None
        and not any(
            s <= seconds and d <= dollars and (s, d) != (seconds, dollars) for s, d in known
        )
        for seconds, dollars in points
    ]


def notes_of(machines: Sequence[tuple[str, BenchResult]]) -> list[str]:
    """What the rows of each machine need as an explanation."""
    several = len(machines) > 1
    return [
        f"{letter}: {note}" if several else note
        for letter, result in machines
        for note in (*speedup_notes(result.rows), *precision_notes(result.rows))
    ]
