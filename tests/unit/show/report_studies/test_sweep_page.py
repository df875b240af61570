"""The page about a sweep: the numbers of the verb, the cells that are missing, hostile texts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from made_runs import RunMaker
from report_pages import HOSTILE, NOW, PageReader
from stoker.cli import main
from stoker.errors import BAD_REQUEST, FINISHED, BadRequest
from stoker.fleet.grid.cell import Cell, Plan
from stoker.fleet.grid.directory import Grid
from stoker.recipe.resolve import resolve
from stoker.show.report_studies.sweep_page import sweep_page, value_chart
from stoker.study.halving import plan_halving
from stoker.study.recorded import is_sweep, newest_plan, sweep_of
from stoker.study.search import grid_points, parse_axes
from stoker.study.sweep import Sweep, plan_sweep, rows, trials_of


def planned(*sets: str) -> Sweep:
    points = grid_points(parse_axes(sets))
    return plan_sweep(
        trials_of(points, lambda point: resolve(None, {"epochs": 4, **point}).recipe), "set", 1
    )


def with_results(sweep: Sweep, folder: Path, shares: list[float | None]) -> Grid:
    """A grid whose first cells have these results, each with a run."""
    grid = Grid(folder)
    first = RunMaker(folder.parent / "made", steps=60).attempt(0, 60).run.path
    for cell, share in zip(sweep.cells, shares, strict=False):
        if share is None:
            continue
        shutil.copytree(first, grid.cell_path(cell) / "work" / "run")
        label = {"label": sweep.plan.cells[cell].label}
        (grid.cell_path(cell) / "cell.json").write_text(json.dumps(label))
        result = {"top1": round(1000 * share), "images": 1000, "epoch": 4.0}
        grid.files.create(f"cells/{cell}/result.json", json.dumps(result).encode())
    return grid


def read(sweep: Sweep, grid: Grid) -> PageReader:
    page, _ = sweep_page(sweep, grid, now=NOW)
    assert "could not be made" not in page and len(page) < 2_000_000
    return PageReader(page)


def test_its_numbers_are_those_of_the_verb(tmp_path: Path) -> None:
    sweep = planned("lr=0.1,0.2", "seed=0..2")
    grid = with_results(sweep, tmp_path / "grid", [0.5, 0.52, 0.54, 0.8, 0.82, 0.84])
    text = read(sweep, grid).text
    for words in ("Best: lr=0.2, 82.00%", "77.0% to 87.0%", "3 of 3", "6 cells: 6 done"):
        assert words in text, words
    assert "None: all are done." in text and "How did the best go?" in text


def test_a_recorded_plan_makes_the_same_rows(tmp_path: Path) -> None:
    sweep = planned("lr=0.1,0.2", "optimizer=sgd,adamw", "seed=0,1")
    recorded = sweep_of(sweep.plan)
    assert recorded.cells == sweep.cells
    grid = with_results(sweep, tmp_path / "grid", [0.1 * n for n in range(8)])
    status = grid.status(sweep.plan)
    assert rows(recorded, grid, status) == rows(sweep, grid, status)


def test_rungs_of_halving_are_recorded() -> None:
    points = grid_points(parse_axes(["lr=0.1,0.2,0.3,0.4"]))
    trials = trials_of(points, lambda point: resolve(None, {"epochs": 4, **point}).recipe)
    sweep = plan_halving(trials, "set", 1, 2)
    recorded = sweep_of(sweep.plan)
    assert recorded.later == sweep.later and recorded.cells == sweep.cells


def test_cells_that_are_not_done_are_named(tmp_path: Path) -> None:
    sweep = planned("lr=0.1,0.2,0.4", "seed=0,1")
    grid = with_results(sweep, tmp_path / "grid", [0.5, 0.6, 0.7])
    failed = list(sweep.cells)[-1]
    for lease in ("000001", "000002"):
        end = {"outcome": "failed", "code": 1, "output": f"{HOSTILE}\nno space <b>"}
        grid.files.create(f"cells/{failed}/leases/{lease}", b"")
        grid.files.create(f"cells/{failed}/leases/{lease}.end", json.dumps(end).encode())
    text = read(sweep, grid).text
    assert "3 cells" in text and "lr=0.2 seed=1" in text and "waiting" in text
    assert "failed: lr=0.4 seed=1: no space <b>" in text
    assert "Not all cells are done: the best may change" in text


def test_nothing_done_and_nothing_swept(tmp_path: Path) -> None:
    text = read(planned("lr=0.1,0.2"), Grid(tmp_path / "a")).text
    assert "Nothing can be said yet." in text and "There are no curves" in text
    alone = sweep_of(planned("lr=0.1").plan)
    assert "One recipe: no setting differs." in read(alone, Grid(tmp_path / "b")).text


@pytest.mark.parametrize(("values", "is_log"), [("0.1,0.2,1", False), ("0.001,0.01,1", True)])
def test_the_axis_of_far_values_is_logarithmic(tmp_path: Path, values: str, is_log: bool) -> None:
    sweep = planned(f"lr={values}", "seed=0..2")
    grid = with_results(sweep, tmp_path / "grid", [0.3 + 0.01 * n for n in range(9)])
    table = rows(sweep, grid, grid.status(sweep.plan))
    chart = value_chart(0, "lr", table)
    assert chart.axes[0].is_log == is_log
    (line,) = chart.series
    assert list(line.x["own"]) == ([-3, -2, 0] if is_log else [0.1, 0.2, 1])
    assert line.ends is not None and (line.ends[0] < line.y).all() and (line.y < line.ends[1]).all()
    page, _ = sweep_page(sweep, grid, now=NOW)
    assert ("data-log" in page.partition("<script>")[0]) == is_log and "interval s0" in page


def test_a_setting_that_is_no_number_has_a_table(tmp_path: Path) -> None:
    sweep = planned("optimizer=sgd,adamw")
    grid = with_results(sweep, tmp_path / "grid", [0.5, 0.6])
    reader = read(sweep, grid)
    assert "Accuracy over optimizer" in reader.text
    assert not [one for one in reader.named("h3") if one.get("id") == "chart-value-0"]


def test_hostile_values_are_escaped(tmp_path: Path) -> None:
    plan = Plan()
    for lr in (0.1, 0.2):
        meaning = {"do": "train", "values": {"lr": lr, f"k{HOSTILE}": f"{HOSTILE}{lr}"}}
        plan.add(Cell(f"{HOSTILE} {lr}", ("x",), meaning))
    sweep = sweep_of(plan)
    grid = with_results(sweep, tmp_path / "grid", [0.5, 0.6])
    page, _ = sweep_page(sweep, grid, now=NOW)
    reader = PageReader(page)
    assert len(reader.named("script")) == 1 and not reader.named("img")
    assert "\x1b" not in page and "\u202e" not in page


class TestVerb:
    def test_a_sweep_has_its_page(self, tmp_path: Path) -> None:
        sweep = planned("lr=0.1,0.2")
        grid = with_results(sweep, tmp_path / "grid", [0.5, 0.6])
        grid.freeze(sweep.plan)
        assert main(["report", str(grid.path)]) == FINISHED
        assert "<title>Sweep of 2 settings</title>" in (grid.path / "report.html").read_text()

    def test_a_changed_plan_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "plans").mkdir()
        (tmp_path / "plans" / f"{'0' * 32}.jsonl").write_text("{}")
        assert main(["report", str(tmp_path)]) == BAD_REQUEST
        assert "was changed" in capsys.readouterr().err


def test_other_plans_are_no_sweeps(tmp_path: Path) -> None:
    assert newest_plan(Grid(tmp_path)) is None
    assert not is_sweep(Plan.of([Cell("x", ("sh",), {"label": "x"})]))
    with pytest.raises(BadRequest, match="no recipe"):
        sweep_of(Plan.of([Cell("x", ("sh",), {"do": "train"})]))
