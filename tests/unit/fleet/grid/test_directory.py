from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stoker.errors import BadRequest
from stoker.fleet.grid.cell import Cell, Plan
from stoker.fleet.grid.directory import Grid, own_digest

CELL = Cell("a", ("true",), {})


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    grid = Grid(tmp_path / "grid")
    grid.freeze(Plan.of([CELL]))
    return grid


def test_a_frozen_plan_and_its_sources_are_read_again(grid: Grid) -> None:
    digest = grid.freeze(Plan.of([CELL]))
    assert list(grid.plan(digest).cells) == [CELL.id]
    assert grid.sources(own_digest()).name == own_digest()


@pytest.mark.parametrize("digest", ["", "../../plan", "0" * 32, "A" * 32])
def test_what_was_not_planned_is_refused(grid: Grid, digest: str) -> None:
    with pytest.raises(BadRequest, match="does not exist"):
        grid.plan(digest)
    with pytest.raises(BadRequest, match="missing or was changed"):
        grid.sources(digest)


@pytest.mark.parametrize(
    "name",
    [
        "stoker/commit.py",
        "stoker/commit.abi3.so",
        "stoker/__pycache__/commit.cpython-311.pyc",
        "stoker/notes.txt",
        "torch.py",
        "torch/__init__.py",
        "sitecustomize.py",
    ],
)
def test_sources_with_anything_beside_them_are_refused(grid: Grid, name: str) -> None:
    file = grid.path / "sources" / own_digest() / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("print('not ours')\n")
    with pytest.raises(BadRequest, match="missing or was changed"):
        grid.sources(own_digest())


@pytest.mark.parametrize("name", ["stoker/commit.py", "torch"])
def test_sources_with_links_are_refused(grid: Grid, tmp_path: Path, name: str) -> None:
    file = grid.path / "sources" / own_digest() / name
    if file.exists():
        file.rename(tmp_path / "moved")  # the link has the right bytes, for now
    else:
        (tmp_path / "moved").mkdir()
    file.symlink_to(tmp_path / "moved")
    with pytest.raises(BadRequest, match="missing or was changed"):
        grid.sources(own_digest())


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"3", b"{", b"[" * 100_000, b'{"seconds": "x"}', b'{"outcome": []}'],
)
def test_an_end_that_others_wrote_is_read_as_it_can_be(grid: Grid, text: bytes) -> None:
    grid.files.create(f"cells/{CELL.id}/leases/000001", b"{}")
    grid.files.create(f"cells/{CELL.id}/leases/000001.end", text)
    (end,) = grid.ends(CELL.id)
    assert end["seconds"] == 0.0
    assert isinstance(end["outcome"], str)
    assert grid.status(Plan.of([CELL])).count("done") == 0


def test_a_pipe_in_the_place_of_a_file_does_not_block(grid: Grid) -> None:
    folder = grid.cell_path(CELL.id)
    folder.mkdir(parents=True)
    os.mkfifo(folder / "result.json")
    assert grid.result(CELL.id) is None


def test_finished_cells_of_other_plans_are_counted_apart(grid: Grid) -> None:
    planned = Cell("b", ("true",), {})
    other = Cell("c", ("true",), {"c": 1})
    older = Cell("b", ("true",), {}, sources="0" * 32)
    for cell in (planned, other, older):
        grid.files.create(f"cells/{cell.id}/cell.json", json.dumps(cell.as_json()).encode())
        grid.files.create(f"cells/{cell.id}/result.json", b"{}")
    status = grid.status(Plan.of([planned]))
    assert status.count("done") == 1
    assert (status.others, status.older) == ([other.id], [older.id])
