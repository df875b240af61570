"""Accuracy against sparsity, as lines of text."""

from __future__ import annotations

import string

from stoker.intervals import Mean
from stoker.study.tickets.plan import percent
from stoker.study.tickets.results import TicketResults

ROWS, AXIS, WIDTH, LEAST = 12, 8, 80, 6
"""Lines, columns of the axis and of all, and columns that a level needs at least."""


def chart_lines(results: TicketResults) -> list[str]:
    """A curve for each rewind point, and the best of the controls. Nothing where no level has a
    result; of very many levels some are left out."""
    every = len(results.design.keeps) + 1
    columns = thinned(every, (WIDTH - AXIS) // LEAST)
    points = [point for point in points_of(results) if point[0] in columns]
    values = [value for _, _, value in points]
    if len({column for column, _, _ in points}) < 2:
        return []
    low, high = min(values), max(values)
    span = (high - low) or 1e-9
    width = min(10, (WIDTH - AXIS) // len(columns))
    grid = [dict.fromkeys(columns, "") for _ in range(ROWS)]
    for column, mark, value in points:
        grid[round((high - value) / span * (ROWS - 1))][column] += mark
    lines = [
        f"{100 * (high - span * row / (ROWS - 1)):>{AXIS - 3}.1f} | "
        + "".join(f"{marks[: width - 1]:^{width}}" for marks in line.values())
        for row, line in enumerate(grid)
    ]
    names = ["100 %", *map(percent, results.design.keeps)]
    letters = zip(string.ascii_uppercase, results.design.rewinds, strict=False)
    tickets = [f"{letter} from epoch {epoch:g}" for letter, epoch in letters]
    return [
        "top-1 in %, by the share of weights kept:",
        *(line.rstrip() for line in lines),
        " " * (AXIS - 2) + "+" + "-" * (width * len(columns)),
        (" " * AXIS + "".join(f"{names[column]:^{width}}" for column in columns)).rstrip(),
        "  d dense   r random mask (best of its starts)   i re-initialised",
        *(f"  tickets: {', '.join(tickets[n : n + 4])}" for n in range(0, len(tickets), 4)),
    ]


def thinned(count: int, most: int) -> list[int]:
    """The numbers below `count`, or so many of them, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(n * (count - 1) / (most - 1)) for n in range(most)})


def points_of(results: TicketResults) -> list[tuple[int, str, float]]:
    """Column, mark and accuracy of each point. Beyond 26 rewind points there are no letters."""
    points: list[tuple[int, str, float]] = []

    def add(column: int, mark: str, mean: Mean | None) -> None:
        if mean is not None:
            points.append((column, mark, mean.mean))

    add(0, "d", results.dense)
    for column, keep in enumerate(results.design.keeps, 1):
        levels = [level for level in results.levels if level.keep == keep]
        for letter, level in zip(string.ascii_uppercase, levels, strict=False):
            add(column, letter, level.ticket)
        random = [level.random for level in levels if level.random]
        add(column, "r", max(random, key=lambda mean: mean.mean, default=None))
        add(column, "i", levels[0].reinit)
    return points
