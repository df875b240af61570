"""Curves: means over all ranks, at most so many points."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stoker.history.curves import TrainingPoint, TrainingSums, point_of, recent_points
from stoker.run.kinds import Event


def row(number: int, **facts: Any) -> Event:
    return {
        "kind": "steps",
        "count": 10,
        "step": 10 * number,
        "last": 10 * number + 9,
        "position": 160 * number,
        "until": 160 * (number + 1),
        "batch": 160,
        "images": 80,
        "sums": [80.0 * number, 40.0, 80.0],
        "epoch": float(number),
        "norm": None,
        "parts": {"forward": 4.0, "checkpoint": 6.0},
        "time": 1000.0 + 10 * number,
        **facts,
    }


def test_a_point_leaves_saves_out_of_the_speed() -> None:
    point = point_of(row(3), attempt=2, seconds=99.0)
    assert (point.step, point.position, point.count) == (40, 640, 10)
    assert (point.step_s, point.images_per_s) == (0.4, 40.0)
    assert (point.attempt, point.seconds, point.lr) == (2, 99.0, None)


def test_a_point_without_time_has_no_speed() -> None:
    assert point_of(row(3, parts={}), 1, 0.0).images_per_s is None


def test_ranks_are_averaged_by_their_images() -> None:
    sums = TrainingSums()
    sums.take(row(1, sums=[100.0, 0.0, 0.0], images=100))
    sums.take(row(1, sums=[0.0, 100.0, 100.0], images=300))
    curve = sums.curve()
    assert curve.loss.tolist() == [0.25]
    assert curve.top1.tolist() == [0.25]


@pytest.mark.parametrize("most", [1, 7, 300])
def test_so_many_points_at_most_and_the_mean_stays(most: int) -> None:
    sums = TrainingSums()
    for number in range(1000):
        sums.take(row(number))
    curve = sums.curve(most)
    assert len(curve.loss) == most
    assert curve.position.tolist() == sorted(curve.position.tolist())
    assert curve.loss.mean() == pytest.approx(499.5, rel=0.01)


def test_few_rows_are_all_points() -> None:
    sums = TrainingSums()
    for number in (5, 3, 9):
        sums.take(row(number))
    assert sums.curve().loss.tolist() == [3.0, 5.0, 9.0]


def test_a_loss_that_is_not_finite_spoils_its_own_point_alone() -> None:
    sums = TrainingSums()
    for number in range(3):
        sums.take(row(number))
    sums.take(row(3, sums=[math.nan, 0.0, 0.0]))
    loss = sums.curve().loss
    assert math.isnan(loss[-1])
    assert loss[:-1].tolist() == [0.0, 1.0, 2.0]


def points(*seconds: float, attempt: int = 1) -> list[TrainingPoint]:
    return [point_of(row(n), attempt, s) for n, s in enumerate(seconds)]


def test_recent_points_end_with_their_attempt() -> None:
    both = [*points(10, 20, 30), *points(40, 50, attempt=2)]
    assert [point.seconds for point in recent_points(both, 1000)] == [40, 50]
    assert [point.seconds for point in recent_points(points(10, 20, 30, 40), 15)] == [30, 40]
    assert list(recent_points([], 10)) == []
