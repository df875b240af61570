"""How a run stands: its state, its step, its best accuracy, and what it has cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from made_runs import RunMaker
from stoker.history.status import StatusReader
from stoker.run.directory import Run
from stoker.run.listing import FAILED, FINISHED, KILLED, NEW, RUNNING, STOPPED


def append(run: Run, attempt: int = 1, **event: object) -> None:
    with run.events_path(attempt, 0).open("a") as file:
        file.write(json.dumps(event) + "\n")


@pytest.mark.parametrize(
    ("outcome", "state"),
    [("finished", FINISHED), ("interrupted", STOPPED), ("failed", FAILED), (None, KILLED)],
)
def test_the_state_at_the_end(tmp_path: Path, outcome: str | None, state: str) -> None:
    run = RunMaker(tmp_path / "run", steps=100).attempt(0, 80, outcome).run
    status = StatusReader(run).look()
    assert (status.state, status.attempt, status.step) == (state, 1, 80)
    assert status.best is not None
    assert 0.3 < status.best < 1


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    assert StatusReader(RunMaker(tmp_path / "run").run).look().state == NEW


def test_a_living_run_is_followed(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "run", steps=100).attempt(0, 40, None)
    reader, now = StatusReader(maker.run), maker.clock.now
    status = reader.look(now + 10)
    assert (status.state, status.step) == (RUNNING, 40)
    append(maker.run, kind="probe", step=40, time=now + 1)
    assert reader.look(now + 10).progress == status.progress  # a measurement is no progress
    append(maker.run, kind="step", step=40, position=40 * 256, time=now + 2)
    after = reader.look(now + 10)
    assert (after.step, after.progress) == (41, status.progress + 1)


def test_the_next_attempt_is_noticed_and_the_best_stays(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "run", steps=100).attempt(0, 80, None)
    reader = StatusReader(maker.run)
    best = reader.look().best
    maker.attempt(60, 70, None)
    status = reader.look()
    assert (status.attempt, status.step, status.best) == (2, 70, best)
    assert StatusReader(maker.run).look().best == best


def test_what_may_take_long(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "run", steps=100).attempt(0, 30, None)
    reader = StatusReader(maker.run)
    assert not reader.look().is_long
    append(maker.run, kind="evaluating", step=30, position=30 * 256)
    assert reader.look().is_long


def test_stalls_and_dollars(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "run", steps=100, dollars_per_h=3600.0).attempt(0, 30, None)
    append(maker.run, kind="stall", words="rank 0 is in 'forward'", time=maker.clock.now)
    status = StatusReader(maker.run).look()
    assert [stall["words"] for stall in status.stalls] == ["rank 0 is in 'forward'"]
    assert status.dollars == pytest.approx(maker.clock.now - 1_790_000_000.0, rel=0.01)
    free = RunMaker(tmp_path / "free", dollars_per_h=None).attempt(0, 5, None).run
    assert StatusReader(free).look().dollars is None
