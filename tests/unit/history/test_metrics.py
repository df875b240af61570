"""The points of an attempt: one value a step, over all ranks, however the ranks write."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from made_runs import RunMaker
from run_records import record
from stoker.history.metrics import (
    EVAL,
    MACHINE,
    MOST_PARTS,
    TRAIN,
    WAIT_S,
    AttemptMetrics,
    MetricPoint,
    safe_name,
)
from stoker.run.directory import Run

HOSTILE = "\x1b[31m=cmd|' /C calc'!A0\n../../etc"


def points_of(run: Run, attempt: int = 1, **options: Any) -> list[MetricPoint]:
    return list(AttemptMetrics(run, attempt, **options).read(is_over=True))


def by_stream(points: list[MetricPoint], stream: str) -> list[MetricPoint]:
    return [point for point in points if point.stream == stream]


@pytest.fixture
def written(tmp_path: Path) -> Run:
    (tmp_path / "run.json").write_text(json.dumps(record()))
    return Run(tmp_path)


def write(run: Run, rank: int, *events: dict[str, Any], attempt: int = 1) -> None:
    path = run.events_path(attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def start(world: int = 1, **facts: Any) -> dict[str, Any]:
    return {"kind": "attempt", "time": 1e9, "position": 0, "step": 0, "world": world, **facts}


def step(number: int, loss: float = 1.0, **facts: Any) -> dict[str, Any]:
    images = 4
    sums = [loss * images, 2.0, 3.0]
    times = {"time": 1e9 + number, "parts": {"forward": 0.5, "evaluation": 9.0}}
    where = {"step": number, "position": 8 * number, "batch": 8, "images": images}
    return {"kind": "step", "sums": sums, **times, **where, **facts}


def test_the_loss_is_the_mean_over_all_ranks(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=200, ranks=3, step_s=0.5).attempt(0, 200).run
    exact = {event["step"] + 1: event for event in run.steps()}
    points = by_stream(points_of(run, every_step=True), TRAIN)
    assert [point.step for point in points] == sorted(exact)
    for point in points:
        event = exact[point.step]
        assert point.values["train/loss"] == pytest.approx(event["sums"][0] / event["images"])
        assert point.values["train/top1"] == pytest.approx(event["sums"][1] / event["images"])


def test_rows_count_every_image_of_every_rank_once(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=300, ranks=2, step_s=0.5).attempt(0, 300).run
    points = by_stream(points_of(run), TRAIN)
    assert 10 < len(points) < 60
    assert points[-1].step == 300
    counts = [b.step - a.step for a, b in itertools.pairwise(points)]
    mean = sum(p.values["train/loss"] * n for p, n in zip(points[1:], counts, strict=True))
    exact = [event["sums"][0] / event["images"] for event in run.steps()]
    assert mean / sum(counts) == pytest.approx(sum(exact[1:]) / len(exact[1:]), rel=0.02)


def test_the_metrics(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=400, ranks=2, gpus=True).attempt(0, 400).run
    points = points_of(run)
    train, machine = by_stream(points, TRAIN)[-1], by_stream(points, MACHINE)[-1]
    names = {"loss", "top1", "top5", "lr", "grad_norm", "images_per_s", "step_s", "epoch"}
    assert {f"train/{name}" for name in names} < {*train.values}
    assert {"step/forward", "step/exchange", "cost/dollars"} < {*train.values}
    assert {"machine/cpu_busy", "machine/gpu0_busy", "machine/gpu1_power_w"} < {*machine.values}
    evaluations = by_stream(points, EVAL)
    assert [point.step for point in evaluations] == list(range(20, 400, 20))
    assert {*evaluations[0].values} == {"eval/top1", "eval/top5", "eval/loss"}
    dollars = [point.values["cost/dollars"] for point in by_stream(points, TRAIN)]
    assert dollars == sorted(dollars)


def test_parts_are_seconds_of_a_step_and_pauses_are_none(written: Run) -> None:
    write(written, 0, start(), *map(step, range(20)))
    point = by_stream(points_of(written), TRAIN)[-1]
    assert point.values["step/forward"] == 0.5
    assert "step/evaluation" not in point.values


def test_a_row_waits_for_the_other_ranks(written: Run) -> None:
    now = [0.0]
    metrics = AttemptMetrics(written, 1, clock=lambda: now[0])
    write(written, 0, start(world=2), *(step(n, loss=1.0) for n in range(3)))
    assert list(metrics.read()) == []
    write(written, 1, start(world=2), *(step(n, loss=3.0) for n in range(3)))
    write(written, 1, step(3))
    points = list(metrics.read())
    assert [(point.step, point.values["train/loss"]) for point in points] == [(1, 2.0), (2, 2.0)]


def test_a_silent_rank_delays_the_others_for_a_limited_time(written: Run) -> None:
    now = [0.0]
    metrics = AttemptMetrics(written, 1, clock=lambda: now[0])
    write(written, 0, start(world=2), *map(step, range(3)))
    assert list(metrics.read()) == []
    now[0] = WAIT_S + 1
    assert [point.step for point in metrics.read()] == [1, 2]
    assert [point.step for point in metrics.read(is_over=True)] == [3]


def test_a_hostile_number_of_ranks_costs_nothing(written: Run) -> None:
    write(written, 0, start(world=2**53), step(0))
    assert [point.step for point in points_of(written)] == [1]


def test_steps_that_a_later_attempt_repeated_are_left_out(tmp_path: Path) -> None:
    maker = RunMaker(tmp_path / "run", steps=200, ranks=2).attempt(0, 150, None)
    points = points_of(maker.run, cut=100 * 256)
    assert by_stream(points, TRAIN)[-1].step == 100
    assert max(point.step for point in points) == 100
    assert by_stream(points, EVAL)[-1].step == 90


def test_one_value_a_step_in_every_stream(tmp_path: Path) -> None:
    run = RunMaker(tmp_path / "run", steps=60, ranks=2, step_s=11.0).attempt(0, 60).run
    points = points_of(run)
    for stream in {point.stream for point in points}:
        steps = [point.step for point in by_stream(points, stream)]
        assert steps == sorted(set(steps))


def test_other_machines_have_streams_of_their_own(written: Run) -> None:
    probe = {"kind": "probe", "time": 1e9 + 1, "step": 0, "cpu": {"busy": 0.5}}
    for rank in range(4):
        write(written, rank, start(world=4, local_world=2, local_rank=rank % 2), step(0), probe)
    points = points_of(written)
    assert {point.stream for point in points} == {TRAIN, MACHINE, f"{MACHINE}.2"}
    assert by_stream(points, f"{MACHINE}.2")[0].values == {"machine.2/cpu_busy": 0.5}


def test_a_loss_may_be_nan(written: Run) -> None:
    write(written, 0, start(), step(0, loss=math.nan))
    assert math.isnan(points_of(written)[0].values["train/loss"])


def test_hostile_names_become_plain_ones(written: Run) -> None:
    parts = {HOSTILE: 1.0, **{f"part{n}": 0.1 for n in range(3 * MOST_PARTS)}}
    write(written, 0, start(), step(0, parts=parts))
    names = [name for name in points_of(written)[0].values if name.startswith("step/")]
    assert len(names) <= MOST_PARTS
    assert all(
        safe_name(name.removeprefix("step/")) == name.removeprefix("step/") for name in names
    )
    assert safe_name("") == "_"


def test_an_evaluation_of_an_older_format_has_the_step_before_it(written: Run) -> None:
    evaluation = {"kind": "evaluation", "position": 16, "images": 10, "top1": 5}
    write(written, 0, start(), step(0), step(1), evaluation)
    assert [(p.step, p.values["eval/top1"]) for p in points_of(written)[2:]] == [(2, 0.5)]
