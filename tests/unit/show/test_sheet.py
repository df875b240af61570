"""A sheet of captioned images: what is drawn where, and what is never overwritten."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from golden import check_golden
from stoker.errors import BadRequest
from stoker.show import sheet
from stoker.show.sheet import GAP, LEAST_WIDTH, LINE, Tile, check_sheet, write_sheet


def tile(colour: tuple[int, int, int], side: int = 160, lines: tuple[str, ...] = ("cat",)) -> Tile:
    return Tile(np.full((side, side, 3), colour, np.uint8), lines)


def drawn(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.asarray(image)


def test_tiles_are_placed_row_by_row(tmp_path: Path) -> None:
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
    write_sheet(tmp_path / "a.png", [tile(colour) for colour in colours], columns=2)
    pixels = drawn(tmp_path / "a.png")
    pitch = 160 + GAP
    places = [(GAP, GAP), (GAP, GAP + pitch), (GAP + pitch + LINE, GAP)]
    for (top, left), colour in zip(places, colours, strict=True):
        assert (pixels[top : top + 160, left : left + 160] == colour).all()
    assert (pixels[GAP + 160 : GAP + 160 + LINE, GAP : GAP + 40] < 100).any()  # the caption


def test_small_images_are_enlarged_by_a_whole_factor(tmp_path: Path) -> None:
    image = np.zeros((32, 32, 3), np.uint8)
    image[0, 0] = 255
    write_sheet(tmp_path / "a.png", [Tile(image, ())])
    pixels = drawn(tmp_path / "a.png")
    assert (pixels[GAP : GAP + 4, GAP : GAP + 4] == 255).all()
    assert (pixels[GAP : GAP + 4, GAP + 4 : GAP + 128] == 0).all()


def test_a_long_or_hostile_caption_stays_in_its_tile(tmp_path: Path) -> None:
    lines = ("a very long name " * 50, "\x1b[2J\n\u202e" * 30, "")
    write_sheet(tmp_path / "a.png", [tile((0, 0, 0), 8, lines)])
    width = drawn(tmp_path / "a.png").shape[1]
    assert width == LEAST_WIDTH + 2 * GAP


def test_a_sheet_replaces_a_sheet_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    for colour in ((1, 2, 3), (4, 5, 6)):
        write_sheet(path, [tile(colour)])
    assert (drawn(path)[GAP + 5, GAP + 5] == (4, 5, 6)).all()
    assert [file.name for file in tmp_path.iterdir()] == ["a.png"]


def test_golden_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.png").write_text("mine")
    Path("folder.png").mkdir()

    def answer(name: str) -> str:
        with pytest.raises(BadRequest) as refusal:
            check_sheet(Path(name))
        return str(refusal.value)

    lines = [answer(name) for name in ("notes.png", "folder.png", "a.jpg", "none/a.png")]
    monkeypatch.setattr(sheet, "MOST_PIXELS", 10_000)
    with pytest.raises(BadRequest) as refusal:
        write_sheet(Path("b.png"), [tile((0, 0, 0))] * 3)
    lines.append(str(refusal.value))
    with pytest.raises(BadRequest) as refusal:
        write_sheet(Path("b.png"), [])
    check_golden("show_sheet", [*lines, str(refusal.value)])
    assert Path("notes.png").read_text() == "mine"
    assert not Path("b.png").exists()
