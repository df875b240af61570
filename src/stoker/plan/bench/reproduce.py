"""Measure the rows of a result file again, and say for each whether it holds.

Invariants: the set is the one of the file, or nothing is measured. What differs in the machine or
its software is named before the first cell. A row holds where the intervals of both measurements
overlap, or where neither has figures and the outcome is the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from stoker.data.dataset import Dataset
from stoker.errors import BadRequest
from stoker.plan.bench.result import BenchResult
from stoker.plan.bench.rows import OK, BenchRow, differs
from stoker.plan.bench.session import (
    data_facts,
    environment_differences,
    machine_facts,
    models_of,
)
from stoker.text import shown

HOLDS, DIFFERS, UNKNOWN = "holds", "differs", "too few repeats to tell"


@dataclass(frozen=True)
class Reproduction:
    """A row of the file beside the same row measured here."""

    before: BenchRow
    now: BenchRow

    @property
    def answer(self) -> str:
        """HOLDS, DIFFERS or UNKNOWN."""
        if self.before.outcome != OK or self.now.outcome != OK:
            return HOLDS if self.before.outcome == self.now.outcome else DIFFERS
        different = differs(self.before, self.now)
        if different is None:
            return UNKNOWN
        return DIFFERS if different else HOLDS


def plan_again(result: BenchResult, data: str, *, trusted: bool) -> tuple[BenchResult, list[str]]:
    """The plan to measure the rows of a file again here, and what differs in machine or software.
    `data`: where the set is now; empty: where it was. Raises BadRequest where the set is another
    one, where there are no rows, or where code of the file would run unasked."""
    if not result.rows:
        raise BadRequest("the file has no rows to measure again: stoker bench train DATA")
    own = [name for name, model in models_of(result).items() if model.code]
    if own and not trusted:
        raise BadRequest(
            f"the file brings code to run, {shown(own[0])}: read it under 'codes' in the file, "
            "then add --trust-code"
        )
    path = data or result.data.path
    if not Dataset.is_packed(path):
        raise BadRequest(
            f"no packed set at {shown(path)}, where the file says it was: name it with --data"
        )
    facts = data_facts(Dataset(Path(path)))
    if facts.fingerprint != result.data.fingerprint:
        raise BadRequest(
            f"{shown(path)} is another set than the file's (fingerprint "
            f"{shown(facts.fingerprint)[:16]}, not {shown(result.data.fingerprint)[:16]}): name "
            "the right one with --data"
        )
    environment = machine_facts()
    different = environment_differences(result.environment, environment)
    cells = tuple(row.cell for row in result.rows)
    again = replace(result, data=facts, environment=environment, rows=(), cells=cells)
    return again, different


def reproductions(before: BenchResult, now: BenchResult) -> list[Reproduction]:
    """Each row of a file that was measured again, beside its new row."""
    rows = {row.cell: row for row in now.rows}
    return [Reproduction(row, rows[row.cell]) for row in before.rows if row.cell in rows]
