"""The tables of a comparison of engines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

COST = ("engine", "version", "packages", "MB", "first cell, s", "engine's memory, MB", "grid, s")
FAULTS = (
    *("engine", "starts", "commands", "for done cells", "one cell at once", "ran on"),
    *("steps made twice", "missing", "bit-equal", "own records: cells / results"),
)
JOIN = ("engine", "a second worker", "cells run by two at once", "cells with the edited recipe")


def line(cells: tuple[object, ...]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> Iterator[str]:
    yield from ("", line(head), "|" + "---|" * len(head), *map(line, rows))


def cost(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        row["title"],
        *(row.get("version", "-"), row.get("packages", 0), f"{row.get('bytes', 0) / 1e6:.1f}"),
        f"{row['start_up_s']:.1f}" if row["start_up_s"] else "-",
        f"{row['memory'] / 1e6:.0f}",
        row.get("gave_up") or f"{row['seconds']:.0f}",
    )


def faults(row: Mapping[str, Any]) -> tuple[object, ...]:
    names = ("starts", "commands", "needless", "at_once", "left_over", "steps_repeated", "missing")
    own = row["recorded"]
    figures = (row[name] for name in names)
    return (row["title"], *figures, row["equal"], f"{own['cells']} / {own['results']}")


def join(row: Mapping[str, Any]) -> tuple[object, ...]:
    result = row["join"]
    code = "ran until the end" if result["code"] is None else f"ended with {result['code']}"
    shared = "shared the work" if result["helped"] else "did not help"
    return (row["title"], f"{shared}, {code}", result["at_once"], row["edited"])


def tables(rows: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the report."""
    values = list(rows.values())
    yield from table(COST, [cost(row) for row in values])
    yield from table(FAULTS, [faults(row) for row in values])
    yield from table(JOIN, [join(row) for row in values if "join" in row])
