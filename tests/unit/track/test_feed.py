"""A sink that is slow, refuses, hangs or dies gets every value once, and the follower goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from fake_sinks import FakeProcess, KeptValues
from made_runs import RunMaker
from stoker.errors import BadRequest
from stoker.track import feed as feed_module
from stoker.track.curve import AttemptStarts, CurvePosition, CurveReader
from stoker.track.feed import LONGEST_PAUSE_S, Feed
from stoker.track.process import SinkProcess
from stoker.track.sink import KINDS

STEPS = 400


class Bench:
    """A feed with a sink and a clock that the test drives."""

    def __init__(self, maker: RunMaker, kind: str = "csv") -> None:
        self.maker, self.now = maker, 0.0
        self.kept, self.lines, self.behaviours = KeptValues(), list[str](), list[list[str]]()
        self.processes: list[FakeProcess] = []
        self.starts = AttemptStarts(maker.run)
        start = cast(Callable[[], SinkProcess], self.start)
        self.feed = Feed(maker.run, KINDS[kind], start, self.lines.append, clock=lambda: self.now)

    def start(self) -> Any:
        behaviour = self.behaviours.pop(0) if self.behaviours else []
        self.processes.append(FakeProcess(self.kept, behaviour))
        return self.processes[-1]

    def pump(self, until: int | None = None, *, most: int = 200) -> None:
        """Offer what there is, and pump until the sink has it or cannot be used."""
        self.feed.offer(self.starts.look(), until, is_over=True)
        for _ in range(most):
            if self.feed.is_idle:
                return
            self.feed.pump(0.0)

    def whole(self) -> list[int]:
        reader = CurveReader(self.maker.run, self.starts.look(), CurvePosition())
        points = reader.read(100_000, is_over=True)
        return [point.step for point in points if point.stream == "train"]


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "BATCH", 7)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(RunMaker(tmp_path / "run", steps=STEPS, step_s=0.6).attempt(0, 300, None))


def test_everything_arrives_once_and_in_order(bench: Bench) -> None:
    bench.pump()
    assert bench.feed.is_idle
    assert bench.kept.steps() == bench.whole()
    assert (bench.feed.step, bench.feed.points) == (300, len(bench.kept.points))
    assert bench.lines == []


def test_a_sink_that_refuses_is_tried_again_with_growing_pauses(bench: Bench) -> None:
    bench.behaviours = [["the server says no"] for _ in range(12)]
    bench.feed.offer(bench.starts.look(), None, is_over=False)
    tries = []
    for _ in range(2000):
        bench.feed.pump(0.0)
        if len(bench.processes) > len(tries):
            tries.append(bench.now)
        bench.now += 1.0
    pauses = [b - a for a, b in itertools.pairwise(tries)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 5
    assert pauses[-1] <= LONGEST_PAUSE_S + 1
    bench.pump()
    assert bench.kept.steps() == bench.whole()
    assert len(bench.lines) == 2  # it said once that it refuses, and once that it does not
    assert "CSV does not take values (the server says no)" in bench.lines[0]
    assert bench.lines[1] == "CSV takes values again"


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("kind", ["hang", "lose", "disk full"])
def test_a_sink_that_fails_at_any_message_gets_every_value_once(
    bench: Bench, kind: str, number: int
) -> None:
    bench.behaviours = [["ok"] * number + [kind]]
    for _ in range(300):
        bench.pump(most=5)
        bench.now += 100.0
    assert bench.processes[0].is_killed
    assert bench.kept.steps() == bench.whole()


def test_a_sink_that_hangs_costs_no_wait_and_is_replaced(bench: Bench) -> None:
    bench.behaviours = [["ok", "hang"]]
    bench.pump(most=20)
    assert not bench.feed.is_idle
    assert len(bench.processes) == 1
    bench.now += 61
    bench.pump(most=1)
    assert bench.processes[0].is_killed
    assert "no answer for 60 s" in bench.lines[0]


def test_an_attempt_that_goes_back_replaces_what_was_copied(bench: Bench) -> None:
    bench.pump()
    bench.maker.attempt(240, STEPS)
    bench.pump()
    (step,) = bench.kept.backs
    assert 200 < step <= 240
    assert bench.kept.steps() == bench.whole()
    assert bench.kept.steps()[-1] == STEPS


def test_an_attempt_that_goes_back_behind_a_sink_that_failed(bench: Bench) -> None:
    bench.behaviours = [["ok"] * 4 + ["gone"]]
    bench.pump()
    bench.maker.attempt(20, STEPS)
    bench.now += 100
    bench.pump()
    assert bench.kept.steps() == bench.whole()


def test_an_attempt_that_begins_where_the_last_one_ended_takes_nothing_back(bench: Bench) -> None:
    bench.pump()
    bench.maker.attempt(300, STEPS)
    bench.pump()
    assert bench.kept.backs == []
    assert bench.kept.steps() == bench.whole()


def test_a_sink_that_cannot_take_back_gets_what_a_checkpoint_covers(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "run", steps=STEPS, step_s=0.6).attempt(0, 300, None)
    bench = Bench(maker, "mlflow")
    bench.pump(until=240)
    assert bench.kept.steps()[-1] <= 240
    assert bench.feed.held_step is not None
    maker.attempt(240, STEPS)
    bench.pump(until=None)
    assert bench.kept.backs == []
    assert bench.kept.steps() == sorted({*bench.kept.steps()})
    assert bench.kept.steps()[-1] == STEPS


def test_another_run_in_the_same_place_begins_again(bench: Bench) -> None:
    bench.kept.position = CurvePosition(5, {"train": 9000})
    bench.pump()
    assert bench.kept.backs == [0]
    assert bench.kept.steps() == bench.whole()


def test_a_refusal_at_the_start_is_final(bench: Bench) -> None:
    process = FakeProcess(bench.kept)
    process._answer = {"error": "holds another run: name another --out", "is_refusal": True}
    process.open = lambda: setattr(process, "is_busy", True)  # type: ignore[method-assign]
    bench.start = lambda: process  # type: ignore[method-assign]
    feed = Feed(
        bench.maker.run,
        KINDS["csv"],
        cast(Callable[[], SinkProcess], lambda: process),
        bench.lines.append,
    )
    feed.offer(bench.starts.look(), None, is_over=True)
    with pytest.raises(BadRequest, match="another run"):
        feed.pump(0.0)


def test_closing(bench: Bench) -> None:
    bench.pump()
    assert bench.feed.close("finished", 1.0)
    assert bench.kept.outcomes == ["finished"]
    assert bench.processes[0].is_killed


def test_closing_a_sink_that_hangs(bench: Bench) -> None:
    bench.behaviours = [["ok", "hang"]]
    bench.pump(most=5)
    assert not bench.feed.close("finished", 0.0)
    assert bench.processes[0].is_killed
