from __future__ import annotations

import pytest

from stoker.errors import BadRequest
from stoker.study.search import grid_points, parse_axes, parse_axis, points_of, random_points


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lr=0.1,0.2", (0.1, 0.2)),
        ("lr=0.1,0.1", (0.1,)),
        ("seed=0..3", (0, 1, 2, 3)),
        ("seed=4..4", (4,)),
        ("batch-size=16,32", (16, 32)),
        ("optimizer=sgd,adamw", ("sgd", "adamw")),
        ("ema=true,false", (True, False)),
        ("decay_epochs=1,2;3,4", ((1.0, 2.0), (3.0, 4.0))),
    ],
)
def test_values(text: str, values: tuple[object, ...]) -> None:
    assert parse_axis(text).values == values


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lr", "KEY=VALUE"),
        ("lr=", "KEY=VALUE"),
        ("learning_rate=1", "did you mean 'lr'"),
        ("lr=fast", "a number"),
        ("lr=-1", "at least 0"),
        ("seed=3..1", "ends before it begins"),
        ("seed=0..9999999", "at most 100,000"),
        ("threads=1,2", "does not change the result"),
        ("ema=yes", "true or false"),
        ("optimizer=sgd..adamw", "."),
    ],
)
def test_mistakes(text: str, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        points_of([parse_axis(text)], None)
        raise BadRequest("nothing was refused" if reason != "." else ".")


def test_replicates_stand_together() -> None:
    points = grid_points(parse_axes(["seed=0..1", "lr=0.1,0.2"]))
    assert points == [
        {"lr": 0.1, "seed": 0},
        {"lr": 0.1, "seed": 1},
        {"lr": 0.2, "seed": 0},
        {"lr": 0.2, "seed": 1},
    ]


def test_more_trials_begin_with_the_same_ones() -> None:
    axes = parse_axes(["lr=0.001..1", "momentum=0.8..0.99", "seed=0..1"])
    assert random_points(axes, 20, 0)[:10] == random_points(axes, 5, 0)
    rates = [point["lr"] for point in random_points(axes, 300, 0)][::2]
    assert all(0.001 <= rate <= 1 for rate in rates)
    assert 80 < sum(rate < 0.01 for rate in rates) < 120  # a third: one factor of ten of three


def test_points_that_cannot_differ() -> None:
    with pytest.raises(BadRequest, match="only 2 different"):
        random_points(parse_axes(["lr=0.1,0.2"]), 3, 0)
    with pytest.raises(BadRequest, match="a range of any number"):
        grid_points(parse_axes(["lr=0.1..0.2"]))
    with pytest.raises(BadRequest, match="stands twice"):
        parse_axes(["lr=1", "lr=2"])
    with pytest.raises(BadRequest, match="100,000"):
        grid_points(parse_axes(["seed=0..999", "epochs=1..200"]))
