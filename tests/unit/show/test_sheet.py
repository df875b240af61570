"""A contact sheet holds every picture and every caption, whatever they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evaluations import report
from golden import check_golden
from stoker.data.dataset import Dataset
from stoker.errors import BadRequest
from stoker.run.evaluation import WorstSample
from stoker.show import sheet
from stoker.show.sheet import Tile, drawn_sheet, fitted, sheet_font, shortened, write_sheet
from stoker.show.use.worst import write_worst
from stoker.use.selection import select
from tiny_runs import tiny_set

SCRIPTS = [
    "日本語の名前",
    "العربية",
    "עברית",
    "Ελληνικά",
    "🦊🦉",
    "e\u0301" * 9,
    "\ud800\x1b[2J\n",
    "",
]


def tile(width: int, height: int, colour: int = 90, *lines: str) -> Tile:
    return Tile(np.full((height, width, 3), colour, np.uint8), lines)


@pytest.mark.parametrize(
    ("tiles", "size"),
    [
        (0, (32, 32)),
        (1, (500, 333)),
        (1, (1, 900)),
        (10, (32, 32)),
        (61, (500, 333)),
        (500, (32, 32)),
    ],
)
def test_all_tiles_are_drawn(tiles: int, size: tuple[int, int]) -> None:
    picture = np.asarray(drawn_sheet([tile(*size, 90, "a", "b", "c")] * tiles))
    assert (picture == 90).all(2).sum() >= tiles * 100
    height, width = picture.shape[:2]
    assert tiles < 9 or 1 < width / height < 2


def test_columns_may_be_given() -> None:
    one, four = (drawn_sheet([tile(32, 32)] * 4, columns).size for columns in (1, 4))
    assert one[1] > one[0]
    assert four[0] > four[1]


@pytest.mark.parametrize("text", SCRIPTS)
@pytest.mark.parametrize("fonts", [sheet.FONTS, ("no-such-font.ttf",)])
def test_any_script_is_drawn(
    text: str, fonts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sheet, "FONTS", fonts)
    drawn_sheet([tile(32, 32, 90, text * 20, text)])


def test_captions_stay_within_the_tile() -> None:
    font = sheet_font()
    for text in ("short", "a long caption " * 9, "a/long/path/" * 9 + "to.jpg", "x" * 100_000):
        assert font.getlength(shortened(text, 120, font)) <= 120
    assert shortened("x" * 99, 120, font).endswith("…")
    assert shortened("folder/" * 20 + "7.jpg", 120, font).endswith("/7.jpg")
    assert shortened("short", 120, font) == "short"


def test_small_pictures_are_enlarged_by_a_whole_factor() -> None:
    assert fitted(np.zeros((32, 16, 3), np.uint8), 176).size == (80, 160)
    assert fitted(np.zeros((100, 50, 3), np.uint8), 176).size == (88, 176)
    assert fitted(np.zeros((900, 300, 3), np.uint8), 120).size == (40, 120)
    assert fitted(np.zeros((1, 5000, 3), np.uint8), 120).size == (120, 1)


def test_it_is_written_as_a_whole(tmp_path: Path) -> None:
    write_sheet(tmp_path / "x.png", [tile(32, 32, 90, "a")])
    assert Image.open(tmp_path / "x.png").format == "PNG"
    assert [path.name for path in tmp_path.iterdir()] == ["x.png"]


def test_worst_samples_become_tiles(tmp_path: Path) -> None:
    dataset = Dataset(tiny_set(tmp_path))
    selection = select(dataset, "val", dataset.classes)
    rows = [
        WorstSample(3, "val/class0/3.png", 0, 1, 0.9, 3.0),
        WorstSample(4, "x", 1, None, None, None),
    ]
    made = report(classes=dataset.classes, worst=rows)
    write_worst(str(tmp_path / "worst.png"), made, selection)
    assert Image.open(tmp_path / "worst.png").width > 300
    with pytest.raises(BadRequest, match="there is no folder"):
        write_worst(str(tmp_path / "none" / "worst.png"), made, selection)


def test_a_sheet_replaces_a_sheet_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.png").write_text("mine")
    Path("folder.png").mkdir()

    def answer(name: str) -> str:
        with pytest.raises(BadRequest) as refusal:
            write_sheet(Path(name), [tile(8, 8)])
        return str(refusal.value)

    names = ("notes.png", "folder.png", "a.jpg", "none/a.png", "-")
    check_golden("show_sheet", [answer(name) for name in names])
    assert Path("notes.png").read_text() == "mine"
    for colour in (90, 120):
        write_sheet(Path("a.png"), [tile(8, 8, colour)])
        assert (np.asarray(Image.open("a.png")) == colour).all(2).any()
