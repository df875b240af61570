"""What happens when a job ends: bounded, and never twice for the same reason."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fake_slurm import FakeSlurm
from golden import check_golden
from stoker.errors import StokerError
from stoker.fleet.slurm.commands import own_id, requeue
from stoker.fleet.slurm.ends import MOST_BLIND, MOST_REQUEUES, Progress, decide, record_end


def at(step: int) -> Progress:
    return Progress((step,), f"step {step}")


def end(code: int, *marks: int) -> dict[str, Any]:
    return {"code": code, "marks": list(marks)}


BLIND = Progress((), "")
CASES: list[tuple[str, int, Progress, list[dict[str, Any]], bool]] = [
    ("finished", 0, at(9), [], False),
    ("refused", 2, at(0), [], False),
    ("stopped", 75, at(9), [], True),
    ("stopped again, further", 75, at(9), [end(75, 5)], True),
    ("stopped twice at a step", 75, at(9), [end(75, 9)], False),
    ("stopped before the first step", 75, at(0), [], True),
    ("stopped twice before the first step", 75, at(0), [end(75, 0)], False),
    ("signalled before it listened", 138, at(9), [end(1, 9)], True),
    ("signalled twice before it listened", 143, at(9), [end(138, 9)], False),
    ("failed", 1, at(9), [], True),
    ("failed before the first step", 1, at(0), [], True),
    ("killed", 137, at(9), [end(75, 9)], True),
    ("failed twice at a step", 1, at(9), [end(1, 9)], False),
    ("failed again, earlier", 1, at(7), [end(1, 9)], False),
    ("failed again, further", 1, at(12), [end(1, 9)], True),
    ("failed, stopped, failed at the same step", 1, at(9), [end(1, 9), end(75, 9)], False),
    ("stopped, nothing known", 75, BLIND, [], True),
    ("failed twice, nothing known", 1, BLIND, [end(1)], False),
    ("too often", 75, at(9999), [end(75, 1)] * MOST_REQUEUES, False),
    ("too often, nothing known", 75, BLIND, [end(75)] * MOST_BLIND, False),
    ("unreadable record", 75, at(9), [{"code": 75, "marks": "x"}], True),
]


@pytest.mark.parametrize(("case", "code", "progress", "earlier", "again"), CASES)
def test_decisions(
    case: str, code: int, progress: Progress, earlier: list[dict[str, Any]], again: bool
) -> None:
    assert decide(code, progress, earlier).requeue is again


def test_golden_reasons() -> None:
    lines = [f"{case}: {decide(*rest[:3]).reason}" for case, *rest in CASES]
    lines.append(f"preempted: {decide(75, at(9), [end(75, 9)], preempted=True).reason}")
    check_golden("slurm_ends", lines)


def test_preemptions_are_no_lack_of_progress() -> None:
    ends = [end(75, 0)] * 20
    assert decide(75, at(0), ends, preempted=True).requeue
    assert not decide(1, at(0), [end(1, 0)], preempted=True).requeue


def test_every_job_ends() -> None:
    """Whatever codes come, a job without progress is queued again twice at most."""
    chance = random.Random(1)
    for _ in range(200):
        ends: list[dict[str, Any]] = []
        progress = 0
        while len(ends) <= 2 * MOST_REQUEUES:
            stuck = len(ends) > 20
            progress += 0 if stuck else chance.randrange(2)
            code = chance.choice([1, 75, 137])
            decision = decide(code, at(progress), ends)
            ends.append(end(code, progress))
            if not decision.requeue:
                break
        assert len(ends) <= 24


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    return FakeSlurm(tmp_path / "slurm", monkeypatch)


def test_an_end_is_recorded(slurm: FakeSlurm, tmp_path: Path) -> None:
    assert record_end(tmp_path, "17", 75, at(4)).requeue
    assert not record_end(tmp_path, "17", 75, at(4)).requeue
    assert record_end(tmp_path, "17_3", 75, at(4)).requeue, "each task of an array by itself"
    assert len((tmp_path / "ends-17.jsonl").read_text().splitlines()) == 2
    with (tmp_path / "ends-17_3.jsonl").open("a") as file:
        file.write('{"torn')
    record_end(tmp_path, "17_3", 0, at(9))


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", "PENDING", "PREEMPTED", "TIMEOUT"])
def test_a_job_that_slurm_ends_is_left_to_slurm(
    slurm: FakeSlurm, tmp_path: Path, state: str
) -> None:
    slurm.show(state=state)
    decision = record_end(tmp_path, "17", 75, at(4))
    assert not decision.requeue
    assert state in decision.reason


def test_a_job_in_its_grace_time_is_queued_again(slurm: FakeSlurm, tmp_path: Path) -> None:
    slurm.show(state="RUNNING", preempted="2026-11-16T17:22:43")
    for _ in range(3):
        assert record_end(tmp_path, "17", 75, at(0)).requeue


def test_a_requeue_that_slurm_was_quicker_with_is_no_failure(slurm: FakeSlurm) -> None:
    slurm.answer("scontrol", "")
    requeue("17_3")
    assert slurm.calls() == ["scontrol requeue 17_3"]
    slurm.fail("scontrol", "Job is pending execution for job 17_3")
    with pytest.raises(StokerError):
        requeue("17_3")  # and it does not say in which state the job is


def test_the_id_of_an_array_task() -> None:
    assert own_id({}) == ""
    assert own_id({"SLURM_JOB_ID": "21"}) == "21"
    task = {"SLURM_JOB_ID": "21", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
    assert own_id(task) == "17_3"
