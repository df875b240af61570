"""For any events of a run: each second of its steps is in the facts, and there is a verdict."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.measure.facts_from_events import WARM_UP, AttemptSums, slow_shares
from stoker.measure.spans import ONCE, PARTS
from stoker.measure.verdict import verdict_of

BATCH = 32
SECONDS = st.floats(0, 1e3)
LAPS = st.lists(st.dictionaries(st.sampled_from(PARTS), SECONDS, max_size=6), max_size=12)


def sums_of(ranks: list[list[dict[str, float]]], **more: Any) -> AttemptSums:
    """The sums over the events of a run, without a disk."""
    sums = AttemptSums(**more)
    for rank, laps in enumerate(ranks):
        sums.add(rank, {"kind": "attempt", "step": 0, "environment": {}})
        for step, parts in enumerate(laps):
            sums.add(rank, {"kind": "step", "step": step, "batch": BATCH, "parts": parts})
    return sums


@given(st.lists(LAPS, min_size=1, max_size=4), st.dictionaries(st.sampled_from(PARTS), SECONDS))
def test_every_second_that_counts_is_in_the_means(
    ranks: list[list[dict[str, float]]], rest: dict[str, float]
) -> None:
    sums = sums_of(ranks)
    for rank in range(len(ranks)):
        sums.add(rank, {"kind": "end", "step": len(ranks[rank]), "parts": rest})
    facts = sums.facts()
    counted = {rank: laps[WARM_UP:] for rank, laps in enumerate(ranks) if laps[WARM_UP:]}
    if facts is None:
        assert not counted
        return
    assert [rank.rank for rank in facts.ranks] == sorted(counted)
    for rank_facts in facts.ranks:
        laps = [*counted[rank_facts.rank], rest]
        whole = sum(s for lap in laps for part, s in lap.items() if part not in ONCE)
        assert rank_facts.step_s * len(counted[rank_facts.rank]) == pytest.approx(whole, abs=1e-6)
        assert 0 <= rank_facts.slow_share <= 1
        assert -1e-9 <= rank_facts.own_s <= rank_facts.step_s + 1e-9


@given(st.lists(LAPS, min_size=1, max_size=4))
def test_any_facts_have_a_verdict(ranks: list[list[dict[str, float]]]) -> None:
    facts = sums_of(ranks).facts()
    verdict = verdict_of(facts)
    if verdict is not None:
        assert verdict.lines()
        assert facts is not None and verdict.step_s == facts.step_s


@given(LAPS, st.integers(0, 12), st.integers(0, 12))
def test_windows_that_meet_hold_each_step_once(
    laps: list[dict[str, float]], first: int, last: int
) -> None:
    def steps(begin: int = 0, end: int = 1 << 30) -> list[int]:
        sums = sums_of([laps], includes=lambda step: begin <= step < end)
        return list(sums.ranks[0].own_s) if sums.ranks else []

    first, last = min(first, last), max(first, last)
    assert steps(0, first) + steps(first, last) + steps(last) == steps()


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=20), st.floats(1.2, 10))
def test_of_two_ranks_at_most_one_is_slow_at_a_time(own: list[float], times: float) -> None:
    mine = dict(enumerate(own))
    shares = slow_shares({0: mine, 1: {step: times * s for step, s in mine.items()}})
    assert shares == {0: 0.0, 1: 1.0}
    assert slow_shares({0: mine, 1: mine}) == {0: 0.0, 1: 0.0}
    assert slow_shares({0: mine}) == {}
