"""Checks become rows, whatever they do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stoker.doctor.selftest.checks import CHECKS
from stoker.doctor.selftest.rows import (
    FAILED,
    NOT_RUN,
    OK,
    QUICK,
    Check,
    Measured,
    NotRun,
    Setup,
    chosen,
    rows,
)
from stoker.errors import BadRequest
from stoker.survive.stopping import StopNow
from stoker.train.process_group import Ranks


class Clock:
    """A clock that goes on by one second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def setup(gpus: int = 0, ends_at: float = 1e9) -> Setup:
    ranks = Ranks.join()
    return Setup(ranks, Path("nowhere"), QUICK, ends_at, True, gpus, Clock())


def check_of(outcome: Measured | BaseException, gpus: int = 0) -> Check:
    def measure(setup: Setup) -> Measured:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return Check("some", measure, gpus)


@pytest.mark.parametrize(
    ("check", "gpus", "verdict", "value", "reason"),
    [
        (check_of(Measured("3 ms", "5 ms")), 0, OK, "3 ms", ""),
        (check_of(Measured("7 ms", "5 ms", False)), 0, FAILED, "7 ms", ""),
        (check_of(NotRun("no compiler")), 0, NOT_RUN, "", "no compiler"),
        (check_of(ValueError("one\ntwo")), 0, FAILED, "", "ValueError: one"),
        (check_of(torch.OutOfMemoryError("no memory")), 0, FAILED, "", "OutOfMemoryError: no mem"),
        (check_of(Measured("1"), gpus=1), 0, NOT_RUN, "", "no GPU"),
        (check_of(Measured("1"), gpus=2), 0, NOT_RUN, "", "no GPU; needs 2"),
        (check_of(Measured("1"), gpus=2), 1, NOT_RUN, "", "needs 2 GPUs, and there is 1"),
        (check_of(Measured("1"), gpus=2), 2, OK, "1", ""),
    ],
)
def test_a_check_is_a_row(check: Check, gpus: int, verdict: str, value: str, reason: str) -> None:
    (row,) = rows([check], setup(gpus))
    assert (row.name, row.verdict, row.value) == ("some", verdict, value)
    assert row.reason.startswith(reason) and bool(row.reason) == bool(reason)
    assert row.as_data()["verdict"] == verdict


def test_a_failure_ends_only_its_own_check() -> None:
    checks = [check_of(ValueError("no")), check_of(Measured("1"))]
    assert [row.verdict for row in rows(checks, setup())] == [FAILED, OK]


def test_a_stop_request_ends_everything() -> None:
    checks = [check_of(StopNow()), check_of(Measured("1"))]
    with pytest.raises(StopNow):
        list(rows(checks, setup()))


def test_no_check_begins_after_the_time_is_over() -> None:
    verdicts = [row.verdict for row in rows([check_of(Measured("1"))] * 4, setup(ends_at=6))]
    assert verdicts == [OK, OK, NOT_RUN, NOT_RUN]


def test_names_choose_checks_and_groups() -> None:
    all_names = [check.name for check in CHECKS]
    assert len(set(all_names)) == len(all_names)

    def names(*only: str) -> list[str]:
        return [check.name for check in chosen(CHECKS, only)]

    assert names() == all_names
    assert names("machine", "nan") == ["machine", "nan"]
    assert names("loop-small") == [name for name in all_names if name.startswith("loop-small-")]
    assert names("repeat") == ["repeat", "repeat-kill"]
    assert len(names("loop")) == 8
    with pytest.raises(BadRequest, match="did you mean 'syncs'"):
        names("sync")
    with pytest.raises(BadRequest, match="the checks are machine, "):
        names("xyzzyxyzzy")
