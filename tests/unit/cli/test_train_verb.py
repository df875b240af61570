"""What `stoker train` refuses before it packs a folder: nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples import image_folder
from stoker.cli import main
from stoker.errors import BAD_REQUEST

pytestmark = pytest.mark.exact


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return image_folder(tmp_path / "photos", classes=2, images=3)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--model vit_tiny_patch16_224", "use --image-size 224"),
        ("--model resnet5O", "resnet50"),
        ("--image-size 4", "--image-size 8"),
        ("--run photos/class0/0000.jpg", "--run"),
        ("--profile 110..100", "100..110"),
        ("--profile a..b", "FIRST..LAST"),
        ("--profile 5", "FIRST..LAST"),
        ("--profile 5..", "FIRST..LAST"),
        ("--profile=-5..5", "FIRST..LAST"),
        ("--profile=", "FIRST..LAST"),
        ("--profile 1...5", "FIRST..LAST"),
        ("--profile 1.5..5", "FIRST..LAST"),
        ("--profile \u0661..\u0662", "FIRST..LAST"),
        ("--profile 0..9999999999999", "FIRST..LAST"),
        ("--profile 7..107", "7..106"),
    ],
)
def test_a_mistake_is_found_before_the_folder_is_packed(
    photos: Path, words: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "vit" in words:
        pytest.importorskip("timm")
    before = sorted(photos.parent.rglob("*"))
    assert main(["train", "photos", *words.split()]) == BAD_REQUEST
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert sorted(photos.parent.rglob("*")) == before


@pytest.mark.parametrize("variables", [{"RANK": "1"}, {"WORLD_SIZE": "2"}, {"LOCAL_RANK": "x"}])
@pytest.mark.parametrize("verb", ["train photos", "doctor"])
def test_variables_of_ranks_that_are_left_over(
    photos: Path,
    variables: dict[str, str],
    verb: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(verb.split()) == BAD_REQUEST
    (line,) = capsys.readouterr().err.splitlines()
    assert all(f"{name}={value}" in line for name, value in variables.items())
