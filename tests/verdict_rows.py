"""The rows of chaos/verdicts.toml, and what a right verdict on a run of one is.

Shared by the live runs (chaos/test_verdicts.py) and the replay of recorded ones
(unit/measure/test_verdict_recordings.py). Needs no torch and starts no process.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from stoker.measure.facts import Facts
from stoker.measure.verdict import Verdict, verdict_of

FLAGS = (
    "--model resnet9_w16 --image-size 48 --batch-size 16 --checkpoint-interval 600 "
    "--eval-every 100 --no-rehearse --spot-notice off"
)
IMAGES = 800
WITHIN = 0.15
"""The largest error of a predicted step time, as a share of the measured one."""
RUNS, WRONG = 20, 1
"""Of so many runs of a row, so many may be wrong."""

Choice = Callable[[int], bool]
"""Whether a step counts."""


@dataclass(frozen=True)
class Row:
    """One fault; the fields are those of verdicts.toml."""

    name: str
    limit: str
    faults: list[dict[str, Any]]
    flags: str = ""
    every: int = 0
    until: int = 0
    settled: int = 5
    steps: int = 84
    ranks: int = 1
    cores: int = 1
    threads: int = 0
    rate: str = ""
    quota: float = 0.0
    larger: int = 0
    within: float = WITHIN
    says: list[str] = field(default_factory=list)


ROWS = [
    Row(**row)
    for row in tomllib.loads(
        (Path(__file__).parent / "chaos" / "verdicts.toml").read_text(encoding="utf-8")
    )["row"]
]


@dataclass(frozen=True)
class Outcome:
    """One run: the verdict on it, and the measured step time without the fault."""

    verdict: Verdict
    truth_s: float
    within: float = WITHIN

    @property
    def error(self) -> float | None:
        """The error of the predicted step as a share of the truth; None without a prediction."""
        predicted_s = self.verdict.without_s
        return None if predicted_s is None else predicted_s / self.truth_s - 1

    @property
    def is_close(self) -> bool:
        return self.error is None or abs(self.error) <= self.within

    def names(self, row: Row) -> bool:
        """Whether the verdict names the row's limit, with the words that prove it."""
        text = self.verdict.lines()[0]
        return self.verdict.limit == row.limit and all(words in text for words in row.says)

    def is_right(self, row: Row) -> bool:
        return self.names(row) and self.is_close


def outcome_of(row: Row, facts_of: Callable[[Choice], Facts | None]) -> Outcome | None:
    """The outcome of a run of a row, from the facts of the steps that a choice picks; None where
    the run has no steps with the fault, or none without it."""
    verdict = verdict_of(facts_of(partial(with_fault, row)))
    after = facts_of(partial(without_fault, row))
    if verdict is None or after is None:
        return None
    return Outcome(verdict, after.step_s / (row.larger or 1), row.within)


def with_fault(row: Row, step: int) -> bool:
    """Whether a step is under the fault, and feels it in full."""
    if row.larger:
        return epoch_of(row, step) % 2 == 0
    if row.every:
        return (step // row.every) % 2 == 0 and step % row.every >= row.settled
    return not row.until or step < row.until


def without_fault(row: Row, step: int) -> bool:
    """Whether nothing is left of the fault in a step; true of all steps where there is none."""
    if row.larger:
        return epoch_of(row, step) % 2 == 1
    if row.every:
        return (step // row.every) % 2 == 1 and step % row.every >= row.settled
    return step >= row.until + row.settled


def batch_of(row: Row) -> int:
    """The batch size of a row, from the last flag that sets it."""
    flags = f"{FLAGS} {row.flags}".split()
    return int(flags[len(flags) - flags[::-1].index("--batch-size")])


def epoch_of(row: Row, step: int) -> int:
    """The epoch of a step in a run whose batches are larger in every other epoch."""
    small = IMAGES // batch_of(row)
    epochs, rest = divmod(step, small + small // row.larger)
    return 2 * epochs + (rest >= small)
