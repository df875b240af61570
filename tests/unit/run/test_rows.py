"""Rows add up to the steps that they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.measure.spans import APART, ONCE
from stoker.run.kinds import Event
from stoker.run.rows import (
    GROUPS,
    MOST_STEPS,
    NEVER,
    NOT_OWN,
    NOT_TRAINING,
    ROW_S,
    SINGLE_STEPS,
    RowFolder,
    leaves,
)

BATCH = 16


def step(number: int, time: float, **facts: Any) -> Event:
    return {
        "kind": "step",
        "time": time,
        "step": number,
        "position": number * BATCH,
        "batch": BATCH,
        "images": BATCH // 2,
        "sums": [2.0, 1.0, 3.0],
        "parts": {"forward": 0.25, "exchange": 0.125, "evaluation": 1.0},
        "epoch": number / 10,
        "lr": 0.5,
        "norm": float(number),
        **facts,
    }


def probe(number: int, time: float, **facts: Any) -> Event:
    return {"kind": "probe", "time": time, "step": number, **facts}


def folded(events: Iterable[Event], cut: int = NEVER) -> list[Event]:
    """The rows of some events, each of which is 100 bytes long."""
    folder, rows = RowFolder(cut), list[Event]()
    for number, event in enumerate(events):
        rows += folder.take(event, (100 * number, 100 * number + 100))
    return rows + folder.close()


def steps(count: int, every_s: float = 0.1, first: int = 0) -> list[Event]:
    return [step(first + n, 1000.0 + every_s * n) for n in range(count)]


def test_the_first_steps_have_a_row_each() -> None:
    rows = folded(steps(50))
    assert [row["count"] for row in rows] == [1] * SINGLE_STEPS + [50 - SINGLE_STEPS]


def test_so_have_those_after_the_start_of_an_attempt() -> None:
    start = {"kind": "attempt", "time": 1001.0, "step": 10, "position": 160}
    rows = folded([*steps(10), start, *steps(10, first=10)])
    assert [row.get("count") for row in rows] == [1, 1, 1, 7, None, 1, 1, 1, 7]


def test_a_row_covers_ten_seconds() -> None:
    rows = folded(steps(1000))[SINGLE_STEPS:]
    assert all(row["count"] == ROW_S / 0.1 for row in rows[:-1])
    assert sum(row["count"] for row in rows) == 1000 - SINGLE_STEPS


def test_a_row_ends_where_the_clock_was_set_back() -> None:
    rows = folded([*steps(10), step(10, 5.0), step(11, 5.1)])
    assert [row["count"] for row in rows] == [1, 1, 1, 7, 2]


def test_a_row_ends_where_a_step_is_missing() -> None:
    rows = folded([*steps(10), *steps(5, first=12)])
    assert [(row["step"], row["last"]) for row in rows[3:]] == [(3, 9), (12, 16)]


def test_a_row_ends_before_it_is_too_long() -> None:
    assert max(row["count"] for row in folded(steps(3 * MOST_STEPS, 1e-4))) == MOST_STEPS


def test_sums_of_a_row() -> None:
    row = folded(steps(20))[-1]
    assert row["sums"] == [2.0 * 17, 17.0, 3.0 * 17]
    assert (row["batch"], row["images"]) == (17 * BATCH, 17 * BATCH // 2)
    assert row["parts"] == {"forward": 4.25, "exchange": 2.125, "evaluation": 17.0}
    assert row["own_s"] == [1.25] * 17, "the exchange is not its own"
    assert row["longest_s"] == 0.375, "an evaluation is no part of a step"
    assert (row["step"], row["last"], row["position"], row["until"]) == (3, 19, 48, 320)
    assert (row["epoch"], row["lr"], row["norm"]) == (1.9, 0.5, 19.0)
    assert row["time"] == pytest.approx(1001.9)


def test_a_loss_that_is_not_a_number_stays_one() -> None:
    row = folded([*steps(5), step(5, 1000.6, sums=[float("nan"), 0.0, 0.0], norm=None)])[-1]
    assert row["sums"][0] != row["sums"][0]
    assert row["norm"] == 4.0


def test_a_step_without_any_fields_but_its_place() -> None:
    (row,) = folded([{"kind": "step", "step": 3, "position": 48}])
    assert (row["count"], row["until"], row["time"]) == (1, 48, 0.0)


@pytest.mark.parametrize("cut", [0, 3 * BATCH, 10 * BATCH, 10 * BATCH + 5, 1000 * BATCH])
def test_no_row_crosses_the_cut_and_the_step_there_is_alone(cut: int) -> None:
    for row in folded(steps(40), cut):
        assert row["until"] - BATCH < cut or row["position"] >= cut
        if row["position"] == cut:
            assert row["count"] == 1


def test_other_events_stay_in_their_place() -> None:
    note = {"kind": "note", "time": 1000.5, "words": "x"}
    rows = folded([*steps(10), note, *steps(5, first=10)])
    assert [row["kind"] for row in rows[3:]] == ["steps", "note", "steps"]
    assert rows[4] == {**note, "span": [1000, 1100]}


def test_means_of_probes() -> None:
    events = [
        *steps(5),
        probe(4, 1000.5, cpu={"busy": 0.5}, gpus=[{"busy": 1.0, "device": "x"}], seconds=5.0),
        probe(4, 1005.5, cpu={"busy": 1.0, "steal": 0.25}, seconds=5.0),
    ]
    row = folded(events)[-1]
    assert row["kind"] == "probes"
    assert row["count"] == 2
    assert row["means"] == {
        "cpu.busy": 0.75,
        "cpu.steal": 0.25,
        "gpus.0.busy": 1.0,
        "seconds": 5.0,
    }


def test_threads_of_probes_are_kept() -> None:
    thread = {"name": "x", "python": True, "cores": 0.5}
    (row,) = folded([probe(1, 1.0, threads=[thread]), probe(1, 2.0, threads=[])])
    assert row["threads"] == [thread]


def test_leaves_of_odd_probes() -> None:
    event = probe(3, 5.0, a={"b": [1, {"c": 2.5}], "d": "text"}, e=None, f=float("nan"), g=True)
    assert dict(leaves(event)) == {"a.b.0": 1, "a.b.1.c": 2.5}


@pytest.mark.parametrize("probe_at", range(6))
def test_spans_cover_all_bytes_once(probe_at: int) -> None:
    events = [*steps(6)]
    events.insert(probe_at, probe(probe_at, 1000.0 + 0.1 * probe_at))
    end = 0
    for row in folded(events):
        assert row["span"][0] == end
        end = row["span"][1]
    assert end == 700


def test_the_names_of_parts_are_those_of_spans() -> None:
    assert set(NOT_OWN) == {"exchange", "checkpoint", *ONCE}
    assert set(NOT_TRAINING) == set(APART)


events_of_any_kind = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "step", "probe", "note", "gap", "attempt"]),
        st.floats(0, 6),
        st.floats(0, 2),
    ),
    max_size=80,
)


@given(events_of_any_kind, st.integers(0, 60 * BATCH))
def test_whatever_the_order_the_sums_are_those_of_the_steps(
    choices: list[tuple[str, float, float]], cut: int
) -> None:
    events, number, now = list[Event](), 0, 1000.0
    for kind, wait, seconds in choices:
        now += wait
        if kind == "step":
            events.append(step(number, now, parts={"forward": seconds}))
            number += 1
        elif kind == "probe":
            events.append(probe(number, now, cpu={"busy": seconds}))
        elif kind == "gap":
            number += 2
        else:
            events.append({"kind": kind, "time": now, "step": number, "position": number * BATCH})
    rows = folded(events, cut)
    single = [event for event in events if event["kind"] == "step"]
    for is_lost in (False, True):
        own = [e for e in single if (e["position"] >= cut) == is_lost]
        mine = [r for r in rows if r["kind"] == "steps" and (r["position"] >= cut) == is_lost]
        assert sum(row["count"] for row in mine) == len(own)
        for group in GROUPS:
            for name in {name for event in own for name in event.get(group, {})}:
                whole = sum(event[group].get(name, 0.0) for event in own)
                assert sum(row[group].get(name, 0.0) for row in mine) == pytest.approx(
                    whole, abs=1e-4
                )
        assert [s for row in mine for s in row["own_s"]] == pytest.approx(
            [event["parts"]["forward"] for event in own], abs=1e-6
        )
    others = [e["kind"] for e in events if e["kind"] not in ("step", "probe")]
    assert [r["kind"] for r in rows if r["kind"] not in ("steps", "probes")] == others
    spans = [tuple(row["span"]) for row in rows]
    assert spans == sorted(spans)
