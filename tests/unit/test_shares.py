"""A share of a table of cases: small, different for each commit, and all of it after some."""

from __future__ import annotations

import pytest

from shares import ROTATION, THINNING, is_turn, share

CASES = [f"case {number}" for number in range(103)]


def test_every_case_comes_once_in_as_many_rotations_as_there_are_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = []
    for number in range(1000, 1010):
        monkeypatch.setenv(ROTATION, str(number))
        part = share("kills", CASES, 10)
        assert len(part) in (10, 11)
        assert part == sorted(part, key=CASES.index)
        taken += part
    assert sorted(taken) == sorted(CASES)


def test_the_whole_is_everything_in_order() -> None:
    assert share("kills", CASES, 10, whole=True) == CASES


def test_the_share_is_the_same_for_every_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROTATION, "5")
    assert share("kills", CASES, 4) == share("kills", CASES, 4) != share("signals", CASES, 4)


def test_heavy_tests_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = []
    for number in range(1000, 1004):
        monkeypatch.setenv(ROTATION, str(number))
        turns.append([is_turn(test, 4) for test in range(8)])
    assert [sum(commit) for commit in turns] == [2] * 4
    assert all(sum(commits) == 1 for commits in zip(*turns, strict=True))


def test_a_slow_machine_takes_half_and_all_come_in_twice_as_many_commits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(THINNING, "2")
    taken, turns = [], 0
    for number in range(1000, 1020):
        monkeypatch.setenv(ROTATION, str(number))
        taken += share("kills", CASES, 10)
        turns += is_turn(3, 10)
    assert sorted(taken) == sorted(CASES)
    assert turns == 1
