"""One class alone is refused, with the folder that was probably meant."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from golden import check_golden
from packing import Member, as_folder, as_tar, jpeg
from stoker.cli import main
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.data.sources.classes import MOST_NAMES, class_parent, nothing_at
from stoker.errors import BAD_REQUEST, BadRequest
from stoker.text import shown

PHOTO = jpeg(0, 0)


def tree(*folders: str) -> list[Member]:
    return [(f"{folder}/{number}.jpg", PHOTO) for folder in folders for number in range(3)]


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    # name: folders with images, what is packed; the advice is in the golden text
    "one level too high": (("data/images/cat", "data/images/dog"), "data"),
    "two levels too high": (("data/a/images/cat", "data/a/images/dog"), "data"),
    "splits one level down": (("data/set/train/cat", "data/set/val/cat"), "data"),
    "beside a folder without images": (("data/images/cat", "data/images/dog", "notes"), "data"),
    "inside each split": (
        ("data/train/images/cat", "data/train/images/dog", "data/val/cat"),
        "data",
    ),
    "one class inside a split": (("data/train/cat", "data/val/cat", "data/val/dog"), "data"),
    "one level too low, flat": (("data/cat", "data/dog"), "data/cat"),
    "one level too low, with a folder": (("data/cat/2020", "data/dog/2020"), "data/cat"),
    "inside a split, too low": (("data/train/cat/2020", "data/train/dog"), "data/train/cat"),
    "one class and nothing beside it": (("data/cat",), "data"),
    "splits without train": (("data/val/cat", "data/test/cat"), "data"),
    "splits by other names": (("data/training_set/cat", "data/test_set/cat"), "data"),
}
ARCHIVES = ["one class and nothing beside it", "inside each split", "splits by other names"]


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == BAD_REQUEST
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.exact
def test_one_class_golden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    for number, (name, (folders, source)) in enumerate(REFUSED.items()):
        place = tmp_path / str(number)
        as_folder(place, tree(*folders))
        monkeypatch.chdir(place)
        before = sorted(place.rglob("*"))
        sentence = refusal(capsys, "pack", source)
        assert refusal(capsys, "train", source) == sentence
        lines.append(f"{name}: {sentence}")
        if name in ARCHIVES:
            (place / "data.tar").write_bytes(as_tar(tree(*folders)))
            before.append(place / "data.tar")
            lines.append(f"archive, {name}: {refusal(capsys, 'pack', 'data.tar', '--workers=1')}")
        assert sorted(place.rglob("*")) == sorted(before)
    check_golden("sources_classes", lines)


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "images"])
def test_a_table_with_one_label(tmp_path: Path, kind: str) -> None:
    file = tmp_path / f"list.{'parquet' if kind == 'images' else kind}"
    as_folder(tmp_path, tree("photos"))
    paths = [f"photos/{number}.jpg" for number in range(3)]
    if kind in ("csv", "tsv"):
        mark = "," if kind == "csv" else "\t"
        file.write_text("\n".join([f"path{mark}label", *(f"{path}{mark}cat" for path in paths)]))
    else:
        images = {"image": [PHOTO] * 3} if kind == "images" else {"path": paths}
        pq.write_table(pa.table({**images, "label": ["cat"] * 3}), file)
    with pytest.raises(BadRequest, match=r"only one class .*'cat'.*--columns label=NAME"):
        pack(file, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_one_class_that_can_be_read(tmp_path: Path) -> None:
    as_folder(tmp_path / "photos", [*tree("cat"), ("dog/1.jpg", b""), ("dog/2.jpg", b"")])
    with pytest.raises(BadRequest, match=r"only one class .*'cat'.*dog/\d.jpg: empty file"):
        pack(tmp_path / "photos", tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()


def test_a_target_that_was_there_before_a_refusal_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "data.tar").write_bytes(as_tar(tree("cat")))
    with pytest.raises(BadRequest, match="only one class"):
        pack(tmp_path / "data.tar", tmp_path / "out", workers=1)
    assert (tmp_path / "out").is_dir()


def test_classes_that_share_words_with_splits_are_classes(tmp_path: Path) -> None:
    as_folder(tmp_path / "photos", tree("test_positive", "test_negative", "val"))
    packed = pack(tmp_path / "photos", tmp_path / "out", workers=1)
    assert Dataset(packed).classes == ["test_negative", "test_positive", "val"]


@pytest.mark.parametrize(
    ("paths", "parent"),
    [
        (["a/1.jpg", "a/2.jpg"], None),
        (["1.jpg"], None),
        (["a/x/1.jpg", "a/y/1.jpg"], "a"),
        (["a/b/x/1.jpg", "a/b/y/1.jpg", "a/0.jpg"], "a/b"),
        (["a/train/x/1.jpg"], "a"),
        (["a/1.jpg", "b/1.jpg"], ""),
    ],
)
def test_the_folder_that_holds_several(paths: list[str], parent: str | None) -> None:
    assert class_parent(paths) == parent


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("photoz", "photos"),
        ("photoz/", "photos"),
        ("./photoz", "photos"),
        ("sets/flowrs", "sets/flowers"),
        ("photos-pakced", "photos-packed"),
        ("birds", None),
        ("sets/photos", None),
        ("nowhere/photos", None),
        ("x" * 5000, None),
        ("", None),
        ("pho\x1btos", "photos"),
    ],
)
def test_a_path_that_does_not_exist_is_answered_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, meant: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "photos-packed", "sets/flowers", "b\x1b[31m"):
        Path(name).mkdir(parents=True)
    told = str(nothing_at("folder", typed))
    assert told.startswith("no folder at ")
    assert told.endswith(f": did you mean '{meant}'?" if meant else shown(typed))
    assert "\x1b" not in told


def test_a_folder_of_many_names_takes_no_time(tmp_path: Path) -> None:
    for number in range(MOST_NAMES + 500):
        (tmp_path / f"photos-{number}").touch()
    began = time.monotonic()
    nothing_at("folder", str(tmp_path / ("photos-" + "9" * 200)))
    assert time.monotonic() - began < 5
