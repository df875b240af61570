from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.commit import json_bytes
from stoker.errors import FAILED, FINISHED, BadRequest
from stoker.fleet.grid.directory import WAITING, Grid
from stoker.fleet.grid.local import LocalWorkers
from stoker.recipe.recipe import Recipe
from stoker.recipe.resolve import resolve
from stoker.show.report_studies.sweep_page import sweep_page
from stoker.show.study.sweep import conclusion, failure_lines, figures, status_line, table_lines
from stoker.study.launch import keep_threads, run_cells, threads_of
from stoker.study.results import study_status
from stoker.study.search import Point, grid_points, parse_axes
from stoker.study.sweep import Sweep, plan_sweep, rows, trials_of
from stoker.survive.stopping import StopRequest


def recipe_at(point: Point) -> Recipe:
    return resolve(None, {"epochs": 4, **point}).recipe


def swept(folder: Path, sets: list[str], shares: list[float | None]) -> tuple[Sweep, Grid]:
    """A sweep whose cells have these results; None where one has none."""
    sweep, grid = (
        plan_sweep(trials_of(grid_points(parse_axes(sets)), recipe_at), "set", 1),
        Grid(folder),
    )
    for cell, share in zip(sweep.cells, shares, strict=True):
        if share is not None:
            result = {"top1": round(1000 * share), "images": 1000, "epoch": 4.0}
            grid.files.create(f"cells/{cell}/result.json", json.dumps(result).encode())
    return sweep, grid


def table(folder: Path, sets: list[str], shares: list[float | None]) -> tuple[list[str], Any]:
    sweep, grid = swept(folder, sets, shares)
    status = grid.status(sweep.plan)
    made = rows(sweep, grid, status)
    return [*table_lines(made), *conclusion(made, grid, status)], made


def test_replicates_are_one_row_with_an_interval(tmp_path: Path) -> None:
    lines, made = table(tmp_path, ["lr=0.1,0.2", "seed=0..2"], [0.5, 0.52, 0.54, 0.8, 0.82, 0.84])
    assert [row.settings for row in made] == [{"lr": 0.2}, {"lr": 0.1}]
    assert lines[1].split() == ["lr=0.2", "82.00%", "77.0%", "to", "87.0%", "3"]
    best = made[0].cells[2]
    assert lines[-2:] == [
        "best: lr=0.2, 82.00%",
        f"  its run: {tmp_path / 'cells' / best / 'work' / 'run'}",
    ]


def test_what_the_results_do_not_say(tmp_path: Path) -> None:
    lines, _ = table(tmp_path / "a", ["lr=0.1,0.2", "seed=0..2"], [0.5, 0.6, 0.7, 0.5, 0.6, 0.8])
    assert "overlaps" in lines[-1]
    lines, _ = table(tmp_path / "b", ["lr=0.1,0.2"], [0.5, 0.6])
    assert "fewer than 3 runs" in lines[-1]
    lines, _ = table(tmp_path / "c", ["lr=0.1,0.2", "seed=0..2"], [0.5] * 3 + [0.6, None, None])
    assert any("not all cells are done" in line for line in lines)
    assert "1 of 3" in lines[1]
    lines, _ = table(tmp_path / "d", ["lr=0.1,0.2"], [0.5, 0.5])
    assert "best: lr=0.1 and 1 other the same, 50.00%" in lines
    lines, _ = table(tmp_path / "e", ["lr=0.1,0.2"], [None, None])
    assert not any("best" in line for line in lines)


def test_a_cell_is_the_complete_recipe() -> None:
    """So that an edit of the recipe file changes nothing that is planned, and another default of a
    key that a cell does not set is another version of the sources."""
    points = grid_points(parse_axes(["lr=0.1,0.2"]))
    first, again = (plan_sweep(trials_of(points, recipe_at), "set", 1) for _ in range(2))
    assert list(first.plan.cells) == list(again.plan.cells)
    others = [
        plan_sweep(trials_of(points, recipe_at), "another set", 1),
        plan_sweep(trials_of(points, recipe_at), "set", 2),
        plan_sweep(trials_of(points, lambda p: resolve(None, {"epochs": 5, **p}).recipe), "set", 1),
    ]
    for other in others:
        assert not set(other.plan.cells) & set(first.plan.cells)
    elsewhere = {"epochs": 4, "threads": 3}  # which changes no result
    same = plan_sweep(
        trials_of(points, lambda p: resolve(None, {**elsewhere, **p}).recipe), "set", 1
    )
    assert list(same.plan.cells) == list(first.plan.cells)


def test_a_point_that_is_no_recipe_is_named() -> None:
    points = grid_points(parse_axes(["warmup_epochs=1,9"]))
    with pytest.raises(BadRequest, match=r"warmup_epochs=9: warmup_epochs = 9.0 must be less"):
        plan_sweep(trials_of(points, recipe_at), "set", 1)


def test_the_threads_of_the_first_start_stay(tmp_path: Path) -> None:
    grid = Grid(tmp_path)
    first = threads_of(grid, 0, 1)
    keep_threads(grid, first)
    assert threads_of(grid, 0, 64) == first
    assert threads_of(grid, 5, 64) == 5
    (tmp_path / "threads.json").write_text("many")
    assert threads_of(grid, 0, 10_000) == 1
    for workers, threads in ((0, 0), (1, -1)):
        with pytest.raises(BadRequest, match="at least 1"):
            threads_of(grid, threads, workers)


def test_the_figures_hold_every_cell_and_row(tmp_path: Path) -> None:
    sweep, grid = swept(tmp_path, ["lr=0.1,0.2", "seed=0..1"], [0.5, 0.6, 0.7, None])
    status = grid.status(sweep.plan)
    numbers = json.loads(json_bytes(figures(sweep, rows(sweep, grid, status), grid, status)))
    assert [cell["state"] for cell in numbers["cells"]] == ["done", "done", "done", "waiting"]
    assert numbers["cells"][0]["result"]["top1"] == 500
    assert [(row["top1"], row["done"], row["planned"]) for row in numbers["rows"]] == [
        (0.7, 1, 2),
        (0.55, 2, 2),
    ]


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[" * 100_000, b"{}", b'{"images": 1}'])
def test_one_damaged_result_leaves_the_others(tmp_path: Path, text: bytes) -> None:
    sweep, grid = swept(tmp_path, ["lr=0.1,0.2,0.3"], [0.5, 0.6, 0.7])
    broken = list(sweep.cells)[2]
    file = grid.cell_path(broken) / "result.json"
    file.write_bytes(text)
    status = study_status(grid, sweep.plan)
    made = rows(sweep, grid, status)
    assert "best: lr=0.2, 60.00%" in conclusion(made, grid, status)
    assert status_line(status) == "3 cells: 2 done, 1 damaged"
    assert failure_lines(sweep.plan, grid, status) == [
        f"damaged: lr=0.3: {file} is damaged: remove it, and the cell runs again"
    ]
    numbers = figures(sweep, made, grid, status)
    assert [cell["state"] for cell in numbers["cells"]] == ["done", "done", "damaged"]
    page, _ = sweep_page(sweep, grid)
    assert "lr=0.3" in str(page) and str(file) in str(page)
    file.unlink()
    assert study_status(grid, sweep.plan).count(WAITING) == 1


def test_a_command_with_a_damaged_result_fails(tmp_path: Path) -> None:
    sweep, grid = swept(tmp_path, ["lr=0.1,0.2"], [0.5, 0.6])
    backend = LocalWorkers(1)  # it has nothing to do
    assert run_cells(grid, sweep.plan, "", backend, StopRequest()) == FINISHED
    (grid.cell_path(next(iter(sweep.cells))) / "result.json").write_bytes(b"")
    assert run_cells(grid, sweep.plan, "", backend, StopRequest()) == FAILED
