"""A folder that has changed since it was packed is not trained on silently."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from golden import check_golden
from packing import contents
from samples import image_folder, picture
from stoker.cli import main
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.errors import BAD_REQUEST, FINISHED, BadRequest

pytestmark = pytest.mark.exact


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of three classes with one broken image, packed by its default name."""
    monkeypatch.chdir(tmp_path)
    root = image_folder(Path("photos"), images=4)
    (root / "class0" / "broken.jpg").touch()
    assert main(["pack", "photos", "--workers", "1"]) == FINISHED
    return root


def add(photos: Path, number: int = 90) -> None:
    picture(0, number, (24, 20)).save(photos / "class0" / f"{number}.jpg")


def add_and_remove(photos: Path) -> None:
    add(photos)
    add(photos, 91)
    (photos / "class1" / "0000.jpg").unlink()


def add_class(photos: Path) -> None:
    shutil.copytree(photos / "class2", photos / "class3")


CHANGES = {
    "an image": add,
    "images, and one gone": add_and_remove,
    "a class": add_class,
    "one gone": lambda photos: (photos / "class1" / "0000.jpg").unlink(),
    "a broken one gone": lambda photos: (photos / "class0" / "broken.jpg").unlink(),
    "one in another class": lambda photos: (photos / "class1" / "0000.jpg").rename(
        photos / "class2" / "moved.jpg"
    ),
}


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == BAD_REQUEST
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_has_changed_golden(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed, lines = Path("photos-packed"), []
    before = contents(packed)
    for name, change in CHANGES.items():
        shutil.copytree(photos, "kept", copy_function=os.link)
        change(photos)
        line = refusal(capsys, "train", "photos")
        assert refusal(capsys, "pack", "photos") == line
        lines.append(f"{name}: {line}")
        shutil.rmtree(photos)
        Path("kept").rename(photos)
    assert contents(packed) == before
    assert not Path("runs").exists()
    check_golden("packing_changes", lines)


def test_the_commands_that_are_named_work(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add(photos)
    line = refusal(capsys, "train", "photos")
    command = line.split("'")[1].split()
    assert command == ["stoker", "pack", "photos", "photos-packed-2"]
    assert main([*command[1:], "--workers", "1"]) == FINISHED
    assert Dataset("photos-packed-2").images("train") > Dataset("photos-packed").images("train")
    assert refusal(capsys, "train", "photos").split("'")[1] == "stoker train photos-packed-2"
    add(photos, 91)
    assert "photos-packed-3" in refusal(capsys, "train", "photos")


def test_labels_in_a_list(tmp_path: Path) -> None:
    image_folder(tmp_path / "photos", classes=2, images=2)
    paths = sorted((tmp_path / "photos").rglob("*.jpg"))
    file = tmp_path / "list.csv"
    for labels in ("abab", "abba"):
        rows = [f"{path},{label}" for path, label in zip(paths, labels, strict=True)]
        file.write_text("\n".join(["path,label", *rows]))
        if labels == "abab":
            pack(file, tmp_path / "out", workers=1)
    with pytest.raises(BadRequest, match="2 with another label"):
        pack(file, tmp_path / "out", workers=1)


def test_other_settings_are_not_other_images(
    photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, "pack", "photos", "--max-side", "30")
    assert "holds another packed set" in line
