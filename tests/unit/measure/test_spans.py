"""The parts of a lap add up to its wall time, and no second is counted twice."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.measure.clocks import HostClock
from stoker.measure.spans import PARTS, Spans


class Clock(HostClock):
    """Stands still until told to move."""

    def __init__(self) -> None:
        self.now = 100.0

    def mark(self) -> tuple[float, float]:
        return self.now, self.now / 2

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spans(clock: Clock) -> Spans:
    return Spans(clock)


def test_each_span_gets_its_time_and_other_the_rest(spans: Spans, clock: Clock) -> None:
    clock.pass_by(0.5)
    with spans("data"):
        clock.pass_by(1)
    clock.pass_by(0.25)
    with spans("forward"):
        clock.pass_by(2)
    assert spans.lap().parts() == {"data": 1, "forward": 2, "other": 0.75}


def test_a_span_that_comes_again_adds_up(spans: Spans, clock: Clock) -> None:
    for _ in range(3):
        with spans("forward"):
            clock.pass_by(1)
        with spans("backward"):
            clock.pass_by(2)
    assert spans.lap().parts() == {"forward": 3, "backward": 6, "other": 0}


def test_an_inner_span_takes_its_time_from_the_outer(spans: Spans, clock: Clock) -> None:
    with spans("evaluation"):
        clock.pass_by(1)
        with spans("data"):
            clock.pass_by(4)
            with spans("checkpoint"):
                clock.pass_by(8)
        clock.pass_by(2)
    assert spans.lap().parts() == {"evaluation": 3, "data": 4, "checkpoint": 8, "other": 0}


def test_a_span_inside_one_of_the_same_name_counts_once(spans: Spans, clock: Clock) -> None:
    with spans("data"), spans("data"):
        clock.pass_by(3)
    assert spans.lap().parts() == {"data": 3, "other": 0}


def test_a_lap_begins_with_nothing(spans: Spans, clock: Clock) -> None:
    with spans("data"):
        clock.pass_by(3)
    spans.lap()
    assert sum(spans.lap().parts().values()) == 0
    clock.pass_by(1)
    assert spans.lap().parts() == {"other": 1}


def test_a_lap_inside_a_span_cuts_it_in_two(spans: Spans, clock: Clock) -> None:
    with spans("data"):
        clock.pass_by(3)
        assert spans.lap().parts()["data"] == 3
        clock.pass_by(4)
    assert spans.lap().parts()["data"] == 4


def test_an_exception_closes_its_spans(spans: Spans, clock: Clock) -> None:
    with pytest.raises(ValueError, match="torn"), spans("evaluation"), spans("data"):
        clock.pass_by(2)
        raise ValueError("torn")
    clock.pass_by(5)
    assert spans.lap().parts() == {"evaluation": 0, "data": 2, "other": 5}


def test_what_is_left_of_the_backward_pass_after_the_last_launch_is_exchange(
    spans: Spans, clock: Clock
) -> None:
    with spans("backward"):
        clock.pass_by(2)
        spans.launched()
        clock.pass_by(3)
        spans.launched()
        clock.pass_by(4)
    assert spans.lap().parts() == {"backward": 5, "exchange": 4, "other": 0}


def test_a_launch_outside_of_the_backward_pass_is_nobody_s_exchange(
    spans: Spans, clock: Clock
) -> None:
    with spans("compile"):
        spans.launched()
        clock.pass_by(1)
    spans.launched()
    with spans("optimiser"):
        clock.pass_by(1)
    with spans("backward"):
        clock.pass_by(1)
    found = spans.lap().parts()
    assert found == {"compile": 1, "optimiser": 1, "backward": 1, "other": 0}


def test_a_part_is_divided_by_weight(spans: Spans, clock: Clock) -> None:
    with spans("data"):
        clock.pass_by(6)
    found = spans.lap({"data": {"read": 1.0, "decode": 2.0}}).parts()
    assert found == {"read": 2, "decode": 4, "other": 0}
    with spans("data"):
        clock.pass_by(6)
    assert spans.lap({"data": {"read": 0.0, "decode": 0.0}}).parts() == {"data": 6, "other": 0}


def test_a_thread_that_sleeps_is_not_on_the_cpu() -> None:
    spans = Spans()
    with spans("forward"):
        time.sleep(0.05)
    lap = spans.lap()
    assert lap.parts()["forward"] >= 0.05
    assert lap.on_cpu()["forward"] < 0.02


MOVES = st.lists(
    st.one_of(
        st.sampled_from(PARTS).map(lambda name: ("open", name)),
        st.just(("close", None)),
        st.just(("lap", None)),
        st.floats(0, 1e4).map(lambda seconds: ("pass", seconds)),
    ),
    max_size=60,
)


@given(MOVES)
def test_any_laps_add_up_to_the_time_that_passed(moves: list[tuple[str, object]]) -> None:
    clock = Clock()
    spans, opened, counted = Spans(clock), [], 0.0
    for move, what in moves:
        if move == "open":
            opened.append(spans(str(what)))
            opened[-1].__enter__()
        elif move == "close" and opened:
            opened.pop().__exit__(None, None, None)
        elif move == "lap":
            counted += sum(spans.lap().parts().values())
        elif move == "pass":
            clock.pass_by(float(what))  # type: ignore[arg-type]
    parts = spans.lap().parts()
    assert all(seconds >= 0 for seconds in parts.values())
    assert counted + sum(parts.values()) == pytest.approx(clock.now - 100, abs=1e-3)


def real_lap() -> tuple[float, float]:
    """The sum of the parts of some real work, and its wall time by another watch."""
    began = time.monotonic()
    spans = Spans()
    for _ in range(20):
        with spans("data"):
            time.sleep(0.004)
            with spans("to_device"):
                time.sleep(0.002)
        sum(range(20_000))
        with spans("forward"):
            sum(range(50_000))
    return sum(spans.lap().parts().values()), time.monotonic() - began


def test_by_a_real_clock_the_parts_are_the_wall_time_within_two_percent() -> None:
    # The best of some: between the two watches a busy machine may do something else.
    laps = (real_lap() for _ in range(10))
    assert any(abs(parts - wall) / wall < 0.02 for parts, wall in laps)
