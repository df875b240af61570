"""Rows that are read once give the same history, cost and verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_runs import RunMaker
from stoker.history.history import history_of
from stoker.history.kept_rows import KeptRows
from stoker.history.verdict import facts_and_verdict, verdict_of_run
from stoker.price.ledger.cost import cost_of
from stoker.run.directory import Run
from stoker.run.summaries import RowReader


@pytest.fixture
def run(tmp_path: Path) -> Run:
    maker = RunMaker(tmp_path / "run", steps=400, ranks=2)
    return maker.attempt(0, 300, None).attempt(200, 400).run


def test_everything_is_the_same(run: Run) -> None:
    kept, plain = KeptRows(run), Run(run.path)
    one, other = kept.history(), history_of(plain)
    assert one.points == other.points and one.evaluations == other.evaluations
    assert one.ledger == other.ledger and one.attempts == other.attempts
    costs = cost_of(kept), cost_of(plain)
    assert costs[0].dollars == costs[1].dollars and costs[0].points == costs[1].points
    assert facts_and_verdict(kept) == facts_and_verdict(plain)
    verdict = verdict_of_run(kept)
    assert verdict is not None and verdict.limit == "compute"


def test_rows_are_read_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptRows(run)
    kept.history()
    reads: list[Path] = []
    read = RowReader.__init__

    def count(self: RowReader, path: Path, *more: object) -> None:
        reads.append(path)
        read(self, path, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(RowReader, "__init__", count)
    kept.history()
    facts_and_verdict(kept)
    assert not reads
    list(kept.attempt_rows(1, 0))
    assert len(reads) == 1, "rows without the cut are other rows"


def test_a_run_without_steps_has_no_verdict(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=9).attempt(0, 0).run
    assert facts_and_verdict(run) is None and verdict_of_run(run) is None
    assert KeptRows(run).history().points == []
