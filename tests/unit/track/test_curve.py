"""The curve over all attempts: one value a step, readable from any position."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_runs import RunMaker
from stoker.history.metrics import EVAL, TRAIN, MetricPoint
from stoker.run.directory import Run
from stoker.track import curve
from stoker.track.curve import (
    AttemptStarts,
    CurvePosition,
    CurveReader,
    committed_step,
    lost_step,
    step_to_rewrite_from,
)

STEPS = 600


@pytest.fixture
def maker(tmp_path: Path) -> RunMaker:
    return RunMaker(tmp_path / "run", steps=STEPS, ranks=2, step_s=0.6)


@pytest.fixture
def run(maker: RunMaker) -> Run:
    """Three attempts: the second goes back a little, the third goes back behind the second."""
    return maker.attempt(0, 300, None).attempt(240, 420, None).attempt(200, STEPS).run


def reader_of(run: Run, position: CurvePosition | None = None, **options: bool) -> CurveReader:
    return CurveReader(run, AttemptStarts(run).look(), position or CurvePosition(), **options)


def all_points(reader: CurveReader, most: int = 7) -> list[MetricPoint]:
    points = []
    while batch := reader.read(most, is_over=True):
        points += batch
    return points


def steps_of(points: list[MetricPoint], stream: str = TRAIN) -> list[int]:
    return [point.step for point in points if point.stream == stream]


def test_each_step_has_one_value_and_the_later_attempt_wins(run: Run) -> None:
    points = all_points(reader_of(run, every_step=True))
    assert steps_of(points) == list(range(1, STEPS + 1))
    exact = {event["step"] + 1: event for event in run.steps()}
    for point in points:
        if point.stream == TRAIN:
            event = exact[point.step]
            assert point.values["train/loss"] == pytest.approx(event["sums"][0] / event["images"])


def test_steps_increase_in_every_stream(run: Run) -> None:
    points = all_points(reader_of(run))
    for stream in {point.stream for point in points}:
        assert steps_of(points, stream) == sorted({*steps_of(points, stream)})
    assert {200, STEPS} < {*steps_of(points)}


@pytest.mark.parametrize("copied", [1, 10, 23, 40])
def test_a_reader_goes_on_at_any_position(run: Run, copied: int) -> None:
    whole = all_points(reader_of(run))
    first = reader_of(run)
    begun = first.read(copied, is_over=True)
    assert begun + all_points(reader_of(run, first.position)) == whole


def test_positions_are_plain_data() -> None:
    position = CurvePosition(2, {TRAIN: 4, EVAL: 3})
    assert CurvePosition.of(position.data()) == position
    assert position.before(4, 3) == CurvePosition(3, {TRAIN: 3, EVAL: 3})
    for data in (None, {}, {"attempt": 1}, {"attempt": "x", "steps": {}}):
        with pytest.raises((ValueError, KeyError, TypeError)):
            CurvePosition.of(data)


def test_points_wait_for_the_checkpoint_that_covers_them(run: Run) -> None:
    reader = reader_of(run)
    points = reader.read(10_000, until=250, is_over=True)
    assert steps_of(points)[-1] <= 250
    assert reader.held_step is not None
    assert reader.held_step > 250
    assert points + all_points(reader) == all_points(reader_of(run))


def test_the_newest_checkpoint(run: Run) -> None:
    assert committed_step(run) == 0
    (run.path / "last").write_text("000000420-2\n")
    assert committed_step(run) == 420
    for wrong in ("../../x", "\0", "420", "9" * 200):
        (run.path / "last").write_text(wrong)
        assert committed_step(run) == 0


def test_what_is_lost(maker: RunMaker) -> None:
    maker.attempt(0, 300, None)
    starts = AttemptStarts(maker.run)
    reader = CurveReader(maker.run, starts.look(), CurvePosition())
    all_points(reader)
    assert lost_step(starts.look(), reader.position) is None
    maker.attempt(240, 420, None)
    assert lost_step(starts.look(), reader.position) == 240
    assert lost_step(starts.look(), CurvePosition()) is None
    assert lost_step(starts.look(), CurvePosition(1, {TRAIN: 240})) is None
    assert lost_step(starts.look(), CurvePosition(7, {TRAIN: 3})) == -1


def test_every_stream_with_lost_values_is_rewritten_from_one_that_holds(maker: RunMaker) -> None:
    maker.attempt(0, 300, None)
    reader = reader_of(maker.run)
    copied = all_points(reader)
    maker.attempt(245, 420, None)
    starts = AttemptStarts(maker.run).look()
    step = step_to_rewrite_from(maker.run, starts, reader.position, 245)
    assert step == 240  # the last evaluation that holds
    assert step in steps_of(copied, EVAL)
    only_train = CurvePosition(1, {TRAIN: reader.position.steps[TRAIN]})
    assert 240 <= step_to_rewrite_from(maker.run, starts, only_train, 245) <= 245
    assert step_to_rewrite_from(maker.run, starts, CurvePosition(9, {TRAIN: 5}), -1) == 0


def test_a_new_attempt_is_known_when_it_trains(maker: RunMaker) -> None:
    maker.attempt(0, 50, None)
    starts = AttemptStarts(maker.run)
    first = starts.look()
    assert starts.look() is first
    maker.run.attempt_path(2).mkdir()
    assert starts.look() is first
    assert starts.newest == 2


def test_a_long_skip_is_interrupted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    end = reader_of(run)
    all_points(end)
    monkeypatch.setattr(curve, "READ_S", -1.0)
    reader = reader_of(run, CurvePosition(3, {**end.position.steps, TRAIN: 100}))
    points, reads = [], 0
    while (batch := reader.read(100, is_over=True)) or reader.is_paused:
        points, reads = points + batch, reads + 1
    assert reads > 5
    assert steps_of(points)[-1] == STEPS
