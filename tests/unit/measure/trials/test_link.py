"""Which pairs are measured, and results that survive being written down."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from networks import link, network
from stoker.measure.trials.link import LinkReport, measure_send_rate, pairs_of


@given(st.integers(2, 40), st.integers(1, 4))
def test_pairs_are_bounded_and_reach_every_host(hosts: int, ranks: int) -> None:
    names = [f"host{number}" for number in range(hosts) for _ in range(ranks)]
    pairs, description = pairs_of(names)
    assert len(set(pairs)) == len(pairs) <= max(28, hosts)
    assert all(low < high and names[low] != names[high] for low, high in pairs)
    assert {names[rank] for pair in pairs for rank in pair} == set(names)
    assert description.startswith("every pair" if hosts <= 8 else "neighbours in a ring")


@given(st.integers(2, 40))
def test_ranks_of_one_machine_are_paired_with_each_other(ranks: int) -> None:
    pairs, description = pairs_of(["here"] * ranks)
    assert len(pairs) == (ranks * (ranks - 1) // 2 if ranks <= 8 else ranks)
    assert {rank for pair in pairs for rank in pair} == set(range(ranks))
    assert description.endswith("ranks")


def test_a_report_comes_back_from_json() -> None:
    report = network(pairs=(link(94), link(930, ("b", "c"), (1, 2))))
    assert LinkReport.from_data(json.loads(json.dumps(report.as_data()))) == report


@pytest.mark.parametrize(
    ("mbit", "spread", "busy", "hosts", "port"),
    [
        (94, 0.01, 0.02, ("a", "b"), 100),
        (94, 0.50, 0.02, ("a", "b"), None),
        (9_000, 0.01, 0.95, ("a", "b"), None),
        (9_000, 0.01, None, ("a", "b"), 10_000),
        (9_000, 0.01, 0.1, ("a",), None),
    ],
)
def test_a_port_is_no_guess(
    mbit: float, spread: float, busy: float | None, hosts: tuple[str, ...], port: int | None
) -> None:
    assert link(mbit, hosts, spread=spread, busy=busy).port_mbit == port


def test_one_rank_has_no_send_rate() -> None:
    assert measure_send_rate(1) is None
