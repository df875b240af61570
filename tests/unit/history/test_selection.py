"""Which runs are listed, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from golden import check_golden
from stoker.errors import BadRequest
from stoker.history.selection import FILTER_KEYS, SORT_KEYS, fitting_runs, in_order, parse_filter
from stoker.run.listing import STATES, RunSummary


def summary(name: str, **facts: Any) -> RunSummary:
    return RunSummary(Path("runs") / name, name, **facts)


RUNS = [
    summary("b-mobilenet", model="mobilenet", state="running", best=0.5, hours=3.0, last=2.0),
    summary("a", model="resnet18", state="finished", best=0.8, hours=1.0, dollars=2.0, last=3.0),
    summary("d", problem="run.json: damaged"),
    summary("c", model="resnet50", state="killed", limit="data", hours=2.0, dollars=1.0, last=1.0),
]


def names(runs: list[RunSummary]) -> str:
    return "".join(run.name[0] for run in runs)


@pytest.mark.parametrize(
    ("key", "ascending", "descending"),
    [
        ("name", "abcd", "dcba"),
        ("model", "bacd", "cabd"),
        ("state", "acbd", "bcad"),
        ("best", "bacd", "abcd"),
        ("hours", "acbd", "bcad"),
        ("dollars", "cabd", "acbd"),
        ("last", "cbad", "abcd"),
    ],
)
def test_the_order(key: str, ascending: str, descending: str) -> None:
    """Runs without a value come last either way, by name."""
    assert names(in_order(RUNS, key)) == ascending
    assert names(in_order(RUNS, key, descending=True)) == descending


@given(st.sampled_from(SORT_KEYS), st.booleans(), st.permutations(RUNS))
def test_the_order_does_not_depend_on_that_of_the_folders(
    key: str, descending: bool, runs: list[RunSummary]
) -> None:
    assert in_order(runs, key, descending=descending) == in_order(RUNS, key, descending=descending)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], "bad" + "c"),
        (["model=resnet18"], "a"),
        (["model=resnet*"], "ac"),
        (["model!=resnet*"], "b"),
        (["name=*mobilenet*"], "b"),
        (["state=running"], "b"),
        (["state=[fk]*"], "ac"),
        (["limit=data"], "c"),
        (["best>0.7"], "a"),
        (["best >= 50%"], "ba"),
        (["best<0.8"], "b"),
        (["best=0.8"], "a"),
        (["best!=0.8"], "b"),
        (["hours<2"], "a"),
        (["hours<=2"], "ac"),
        (["dollars>=1"], "ac"),
        (["dollars>=1", "hours>1.5"], "c"),
        (["dollars>=1", "state=running"], ""),
    ],
)
def test_every_filter_must_fit(filters: list[str], expected: str) -> None:
    assert names(fitting_runs(RUNS, [parse_filter(text) for text in filters])) == expected


MISTAKES = [
    *("best", "best>", "=x", "", "speed>3", "best>fast", "best>nan", "hours<1e999", "model>3"),
    *("state=runing", "name\x1b[2J=x", "last>3"),
]


def refusal(text: str) -> str:
    with pytest.raises(BadRequest) as caught:
        parse_filter(text)
    return str(caught.value)


def test_mistakes_golden() -> None:
    lines = [refusal(text) for text in MISTAKES]
    with pytest.raises(BadRequest) as caught:
        in_order(RUNS, "size")
    check_golden("runs_mistakes", [*lines, str(caught.value)])
    assert not any("\x1b" in line for line in lines)


@given(st.text(max_size=30))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        one = parse_filter(text)
    except BadRequest as error:
        assert any(word in str(error) for word in (*FILTER_KEYS, *STATES, "not a number"))
    else:
        fitting_runs(RUNS, [one])
