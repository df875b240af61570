"""Labels that are no classes are refused; honest names with commas and spaces are not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from golden import check_golden
from packing import as_folder, jpeg
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.data.sources.labels import refuse_labels
from stoker.errors import BadRequest

DRAW = random.Random(0)
TAGS = ["clear", "primary", "water", "road", "haze", "cloudy", "agriculture"]
NUMBERS: dict[str, Sequence[Any]] = {
    "distinct fractions": [f"{DRAW.random():.4f}" for _ in range(50)],
    "with some whole numbers": [f"{n / 4}" for n in range(40)],
    "with exponents": ["1e-3", "2.5e-2", "-7.1", "0.4"],
    "floats that repeat": [0.5, 1.5, 2.5] * 20,
    "floats": [DRAW.gauss(0, 1) for _ in range(50)],
}
SEVERAL: dict[str, Sequence[Any]] = {
    "commas": ["cat", "dog", "cat,dog"] * 5,
    "commas and spaces": ["cat, dog", "dog, bird", "bird, cat"],
    "semicolons": ["a;b", "b;c", "c", "a"],
    "bars": ["Effusion|Mass", "Mass", "No Finding", "Effusion", "Mass|Nodule", "Nodule"],
    "spaces": ["cat", "dog", "cat dog", "dog cat"],
    "tags that never stand alone": [
        " ".join(DRAW.sample(TAGS, DRAW.randint(2, 5))) for _ in range(200)
    ],
    "lists as text": ["['cat', 'dog']", "['dog']", "['cat']"],
    "one-hot": ["[1, 0, 0]", "[0, 1, 0]", "[0, 0, 1]"],
}
CLASSES: dict[str, Sequence[Any]] = {
    "class numbers": list(range(100)),
    "class numbers as text": [str(n) for n in range(100)],
    "class numbers as floats": [0.0, 1.0, 2.0, None] * 5,
    "class numbers as text of floats": ["0.0", "1.0", "2.0"],
    "half stars as text": ["0.5", "1.0", "1.5", "2.0"] * 10,
    "versions": ["2.1", "2.2", "3.0"] * 10,
    "ImageNet": [
        "tench, Tinca tinca",
        "goldfish, Carassius auratus",
        "great white shark, white shark, man-eater, man-eating shark, Carcharodon carcharias",
        "tiger shark, Galeocerdo cuvieri",
        "crane",
        "crane, bird",
        "maillot",
        "maillot, tank suit",
    ],
    "places": ["Paris, France", "Lyon, France", "Nice, France", "Rome, Italy"] * 3,
    "cars": ["Audi S5 Coupe 2012", "Audi S5 Convertible 2012", "BMW M3 Coupe 2012", "BMW M3 2011"],
    "animals": ["red fox", "red panda", "arctic fox", "arctic hare", "fox"],
    "a grid of words": [f"{a} {b}" for a in "abcdefgh" for b in "stuvwxyz"],
    "food": ["rice", "fried rice", "chicken", "fried chicken", "chicken curry"],
    "numbers and words": ["7 up", "up", "cola", "1.5 l"],
    "two rows": ["0.1", "0.2"],
    "not a number": ["nan", "inf", "nan", "none"],
    "nothing": [],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_measured_numbers_are_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="measured numbers"):
        refuse_labels(NUMBERS[name], "label", "list.csv")


@pytest.mark.parametrize("name", SEVERAL)
def test_several_labels_in_a_cell_are_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="several labels in one cell"):
        refuse_labels(SEVERAL[name], "label", "list.csv")


@pytest.mark.parametrize("name", CLASSES)
def test_class_names_are_not(name: str) -> None:
    refuse_labels(CLASSES[name], "label", "list.csv")


def url_or_path_list(folder: Path, labels: Sequence[str]) -> Path:
    as_folder(folder, [(f"{n}.jpg", jpeg(0, n)) for n in range(len(labels))])
    rows = [f'{n}.jpg,"{label}"' for n, label in enumerate(labels)]
    (folder / "list.csv").write_text("\n".join(["path,label", *rows]))
    return folder / "list.csv"


@pytest.mark.exact
@pytest.mark.parametrize("labels", [["cat", "dog", "cat,dog"], ["0.12", "0.34", "0.56"]])
def test_honest_names_get_through_with_a_flag(tmp_path: Path, labels: list[str]) -> None:
    file = url_or_path_list(tmp_path, labels)
    with pytest.raises(BadRequest, match="--whole-labels"):
        pack(file, tmp_path / "out", workers=1)
    assert not (tmp_path / "out").exists()
    packed = pack(file, tmp_path / "out", workers=1, whole_labels=True)
    assert Dataset(packed).classes == sorted(labels)


@pytest.mark.parametrize("holds_images", [False, True])
def test_a_parquet_of_measured_numbers(tmp_path: Path, holds_images: bool) -> None:
    images = {"image": [jpeg(0, n) for n in range(6)]} if holds_images else {"path": ["a.jpg"] * 6}
    table = pa.table({**images, "label": [0.1, 2.0, 0.3, 0.4, 0.5, None]})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(BadRequest, match="measured numbers"):
        pack(tmp_path / "t.parquet", tmp_path / "out", workers=1)


def test_label_messages_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lists = {"label": [["cat"], ["cat", "dog"]], "other": [{"a": 1}, {"a": 2}]}
    pq.write_table(pa.table({"path": ["a.jpg", "b.jpg"], **lists}), "lists.parquet")
    calls = [
        lambda: refuse_labels(NUMBERS["with exponents"], "label", "list.csv"),
        lambda: refuse_labels(SEVERAL["commas"], "label", "list.csv"),
        lambda: refuse_labels(["\x1b[31ma;b", "b", "\x1b[31ma"], "label", "list.csv"),
        lambda: pack("lists.parquet", "out"),
        lambda: pack("lists.parquet", "out", columns={"label": "other"}),
    ]
    lines = []
    for call in calls:
        with pytest.raises(BadRequest) as refusal:
            call()
        lines.append(str(refusal.value))
    check_golden("sources_labels", lines)
