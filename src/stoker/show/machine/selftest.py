"""The rows of `stoker selftest` as Markdown, for docs/hardware.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date

from stoker.doctor.selftest.rows import FAILED, NOT_RUN, OK, Row
from stoker.measure.environment import Environment
from stoker.text import one_line, plural

HEADER = ("| check | measured | limit | verdict |", "|---|---|---|---|")


def cell(text: str) -> str:
    """Text that stays within its cell."""
    return one_line(text).replace("|", "/")


def line(row: Row) -> str:
    verdict = f"{row.verdict} ({row.reason})" if row.verdict == NOT_RUN else row.verdict
    value = row.value or (row.reason if row.verdict == FAILED else "")
    return f"| {row.name} | {cell(value)} | {cell(row.limit)} | {cell(verdict)} |"


def machine_text(facts: Environment) -> str:
    """GPU, driver and torch; the processor where there is no GPU."""
    torch = f"torch {facts.versions.get('torch', 'unknown')}"
    if not facts.gpus:
        return f"no GPU, {plural(facts.cores, 'core')} of {facts.processor}, {torch}"
    return f"{len(facts.gpus)} x {facts.gpus[0].name}, driver {facts.driver}, {torch}"


def counts(rows: Sequence[Row]) -> dict[str, int]:
    verdicts = Counter(row.verdict for row in rows)
    return {verdict: verdicts[verdict] for verdict in (OK, FAILED, NOT_RUN)}


def summary(rows: Sequence[Row], facts: Environment, today: date) -> str:
    """One row for the table of docs/hardware.md."""
    number = counts(rows)
    verdicts = f"{number[OK]} ok, {number[FAILED]} failed, {number[NOT_RUN]} not run"
    return f"| `stoker selftest` | {cell(machine_text(facts))} | {verdicts} | {today.isoformat()} |"
