"""CSV: valid files, no formulas, no line twice, and lost values are gone."""

from __future__ import annotations

import csv
import math
import stat
from pathlib import Path

import pytest

from stoker.history.metrics import EVAL, MACHINE, TRAIN, MetricPoint
from stoker.text import plain_cell
from stoker.track.csv_files import CsvFiles, moment
from stoker.track.curve import CurvePosition
from stoker.track.folder import POSITION
from stoker.track.sink import Refusal, SinkOptions

FORMULAS = ("=1+1", "+1", "-1", "@x", "\t=1", " =1", "%x", "|calc")


def options(folder: Path, **facts: object) -> SinkOptions:
    return SinkOptions(**{"run_id": "r1", "name": "run", "out": str(folder / "out"), **facts})


def train(*steps: int) -> list[MetricPoint]:
    return [MetricPoint(TRAIN, n, 1e9 + n, {"train/loss": n / 3, "train/lr": 0.1}) for n in steps]


def evaluation(step: int) -> MetricPoint:
    return MetricPoint(EVAL, step, 1e9, {"eval/top1": 0.5, "eval/top5": 0.9})


def rows(folder: Path, name: str) -> list[list[str]]:
    data = (folder / "out" / name).read_bytes()
    assert data.endswith(b"\r\n")
    assert data.count(b"\n") == data.count(b"\r\n")
    return list(csv.reader(data.decode().splitlines()))


def steps(folder: Path, name: str = "metrics.csv") -> list[int]:
    return [int(row[0]) for row in rows(folder, name)[1:]]


@pytest.fixture
def sink(tmp_path: Path) -> CsvFiles:
    sink = CsvFiles(options(tmp_path))
    assert sink.open() == CurvePosition()
    return sink


def test_the_files(sink: CsvFiles, tmp_path: Path) -> None:
    sink.write([*train(1, 2), evaluation(2)], CurvePosition(1, {TRAIN: 2, EVAL: 2}))
    assert rows(tmp_path, "metrics.csv")[:2] == [
        ["step", "time", "metric", "value"],
        ["1", "2001-09-09T01:46:41.000Z", "train/loss", repr(1 / 3)],
    ]
    assert rows(tmp_path, "evaluations.csv") == [
        ["step", "time", "top1", "top5", "loss"],
        ["2", "2001-09-09T01:46:40.000Z", "0.5", "0.9", ""],
    ]
    assert moment(0.0) == ""


def test_numbers_that_are_none(sink: CsvFiles, tmp_path: Path) -> None:
    values = {"train/loss": math.nan, "train/lr": -math.inf}
    sink.write([MetricPoint(TRAIN, 1, 0.0, values)], CurvePosition(1, {TRAIN: 1}))
    assert [row[3] for row in rows(tmp_path, "metrics.csv")[1:]] == ["nan", "-inf"]


def test_it_goes_on_where_it_ended(sink: CsvFiles, tmp_path: Path) -> None:
    sink.write(train(1, 2), CurvePosition(1, {TRAIN: 2}))
    sink.close("following")
    again = CsvFiles(options(tmp_path))
    assert again.open() == CurvePosition(1, {TRAIN: 2})
    again.write(train(3), CurvePosition(1, {TRAIN: 3}))
    assert steps(tmp_path) == [1, 1, 2, 2, 3, 3]


def test_what_a_killed_tracker_wrote_after_its_position_is_removed(
    sink: CsvFiles, tmp_path: Path
) -> None:
    sink.write(train(1, 2), CurvePosition(1, {TRAIN: 2}))
    sink.close("following")
    with (tmp_path / "out" / "metrics.csv").open("ab") as file:
        file.write(b"3,,train/loss,0.1\r\n3,,trai")
    again = CsvFiles(options(tmp_path))
    assert again.open() == CurvePosition(1, {TRAIN: 2})
    assert steps(tmp_path) == [1, 1, 2, 2]


@pytest.mark.parametrize("damage", ["short", "missing", "position"])
def test_it_begins_again_where_its_files_are_damaged(
    sink: CsvFiles, tmp_path: Path, damage: str
) -> None:
    sink.write(train(1, 2), CurvePosition(1, {TRAIN: 2}))
    sink.close("following")
    metrics = tmp_path / "out" / "metrics.csv"
    if damage == "short":
        metrics.write_bytes(metrics.read_bytes()[:-30])
    elif damage == "missing":
        metrics.unlink()
    else:
        (tmp_path / "out" / POSITION).write_text("{")
    assert CsvFiles(options(tmp_path)).open() == CurvePosition()
    assert steps(tmp_path) == []


def test_lost_values_are_removed(sink: CsvFiles, tmp_path: Path) -> None:
    machine = MetricPoint(MACHINE, 2, 0.0, {"machine/cpu_busy": 0.5})
    points = [*train(1, 5, 9), machine, evaluation(5), evaluation(9)]
    sink.write(points, CurvePosition(1, {TRAIN: 9, MACHINE: 2, EVAL: 9}))
    assert sink.back(5, 2) == CurvePosition(2, {TRAIN: 4, MACHINE: 2, EVAL: 4})
    assert steps(tmp_path) == [1, 1, 2]
    assert steps(tmp_path, "evaluations.csv") == []
    sink.close("finished")
    assert CsvFiles(options(tmp_path)).open() == CurvePosition(2, {TRAIN: 4, MACHINE: 2, EVAL: 4})


@pytest.mark.parametrize("value", FORMULAS)
def test_no_cell_is_a_formula(tmp_path: Path, value: str) -> None:
    CsvFiles(options(tmp_path, parameters={value: value}, tags={"model": value})).open()
    for row in rows(tmp_path, "parameters.csv")[1:]:
        assert not any(cell.lstrip().startswith(("=", "+", "-", "@", "%", "|")) for cell in row)
    assert plain_cell("resnet18") == "resnet18"


def test_one_tracker_at_a_time(sink: CsvFiles, tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="another tracker"):
        CsvFiles(options(tmp_path)).open()
    sink.close("following")
    with pytest.raises(Refusal, match="another run"):
        CsvFiles(options(tmp_path, run_id="r2")).open()


def test_files_of_others_are_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.csv").write_text("mine")
    with pytest.raises(Refusal, match=r"metrics\.csv of its own"):
        CsvFiles(options(tmp_path)).open()
    assert (tmp_path / "out" / "metrics.csv").read_text() == "mine"
    assert stat.S_ISREG((tmp_path / "out" / "metrics.csv").stat().st_mode)
