"""Whatever a run wrote down: each second of its steps is in the facts, and they can be judged."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.measure.facts_from_events import WARM_UP, Gathered, slow_shares
from stoker.measure.spans import ONCE, PARTS
from stoker.measure.verdict import judge

BATCH = 32
SECONDS = st.floats(0, 1e3)
LAPS = st.lists(st.dictionaries(st.sampled_from(PARTS), SECONDS, max_size=6), max_size=12)


def seen_of(ranks: list[list[dict[str, float]]], **more: Any) -> Gathered:
    """As events of the same run would be seen, without a disk."""
    seen = Gathered(**more)
    for rank, laps in enumerate(ranks):
        seen.add(rank, {"kind": "attempt", "step": 0, "environment": {}})
        for step, parts in enumerate(laps):
            seen.add(rank, {"kind": "step", "step": step, "batch": BATCH, "parts": parts})
    return seen


@given(st.lists(LAPS, min_size=1, max_size=4), st.dictionaries(st.sampled_from(PARTS), SECONDS))
def test_every_second_that_counts_is_in_the_means(
    ranks: list[list[dict[str, float]]], rest: dict[str, float]
) -> None:
    seen = seen_of(ranks)
    for rank in range(len(ranks)):
        seen.add(rank, {"kind": "end", "step": len(ranks[rank]), "parts": rest})
    facts = seen.facts()
    counted = {rank: laps[WARM_UP:] for rank, laps in enumerate(ranks) if laps[WARM_UP:]}
    if facts is None:
        assert not counted
        return
    assert [rank.rank for rank in facts.ranks] == sorted(counted)
    for told in facts.ranks:
        laps = [*counted[told.rank], rest]
        whole = sum(s for lap in laps for part, s in lap.items() if part not in ONCE)
        assert told.step_s * len(counted[told.rank]) == pytest.approx(whole, abs=1e-6)
        assert 0 <= told.slow_share <= 1
        assert -1e-9 <= told.own_s <= told.step_s + 1e-9


@given(st.lists(LAPS, min_size=1, max_size=4))
def test_any_facts_can_be_judged(ranks: list[list[dict[str, float]]]) -> None:
    facts = seen_of(ranks).facts()
    verdict = judge(facts)
    if verdict is not None:
        assert verdict.lines()
        assert facts is not None and verdict.step_s == facts.step_s


@given(LAPS, st.integers(0, 12), st.integers(0, 12))
def test_windows_that_meet_hold_each_step_once(
    laps: list[dict[str, float]], first: int, last: int
) -> None:
    def steps(begin: int = 0, end: int = 1 << 30) -> list[int]:
        seen = seen_of([laps], chosen=lambda step: begin <= step < end)
        return list(seen.tallies[0].own_s) if seen.tallies else []

    first, last = min(first, last), max(first, last)
    assert steps(0, first) + steps(first, last) + steps(last) == steps()


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=20), st.floats(1.2, 10))
def test_of_two_ranks_at_most_one_is_slow_at_a_time(own: list[float], times: float) -> None:
    mine = dict(enumerate(own))
    shares = slow_shares({0: mine, 1: {step: times * s for step, s in mine.items()}})
    assert shares == {0: 0.0, 1: 1.0}
    assert slow_shares({0: mine, 1: mine}) == {0: 0.0, 1: 0.0}
    assert slow_shares({0: mine}) == {}
