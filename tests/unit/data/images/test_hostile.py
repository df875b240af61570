"""Whatever lies in a folder has a documented outcome, and nothing accepted fails in training."""

from __future__ import annotations

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from bounded import Ended, stoker
from every_crop import seen
from hostile import CONVERTED, FILES, KEPT, Hostile
from hostile_entries import ENTRIES, OUTSIDE, TOO_DEEP, Entry
from hostile_jpeg import empty_scans, forged_table, photo
from samples import picture
from stoker.data.dataset import Dataset
from stoker.data.images.decode_any import Rejected, inspect
from stoker.data.images.encode import Storage
from stoker.data.loading.render import render_jpeg
from stoker.data.packing.pack import pack
from stoker.data.sources.folder import list_folder
from stoker.text import shown

DOCS = Path(__file__).parents[4] / "docs" / "packing.md"
PEAK_MIB = 1024
CLASS = "train/hostile"


@dataclass
class Packed:
    """A folder of everything, packed once by the command."""

    folder: Path
    out: Path
    ended: Ended
    stored: dict[str, dict[str, Any]]
    rejected: dict[str, dict[str, Any]]
    passed_over: dict[str, str]
    absent: dict[str, str]
    """Entries that this machine cannot have, with the reason."""

    def outcome(self, path: str) -> str:
        """What became of a file, in the words of the fixtures."""
        if path in self.rejected:
            return f"rejected: {self.rejected[path]['reason']}"
        if path in self.passed_over:
            return f"passed over: {self.passed_over[path]}"
        return KEPT if self.bytes_of(path) == self.source(path) else CONVERTED

    def source(self, path: str) -> bytes:
        names = {shown(name): name for name in self.listed}
        return Path(os.path.join(self.folder, names[path])).read_bytes()  # noqa: PTH118

    def bytes_of(self, path: str) -> bytes:
        row = self.stored[path]
        return bytes(Dataset(self.out).split(row["split"]).bytes_of(row["sample"]))

    def pixels_of(self, path: str) -> Any:
        return np.asarray(Image.open(io.BytesIO(self.bytes_of(path))).convert("RGB")).astype(int)

    @property
    def listed(self) -> list[str]:
        listing = list_folder(str(self.folder))
        return [path for split in listing.splits.values() for path in split.images]


def filled(root: Path) -> dict[str, str]:
    """Put everything into a folder; what could not be put there and why."""
    hostile = root / CLASS
    for split in ("train", "val"):
        (root / split / "plain").mkdir(parents=True)
        for number in range(4):
            picture(number, number, (40, 36)).save(root / split / "plain" / f"{number}.jpg")
    hostile.mkdir(parents=True)
    for file in FILES:
        (hostile / file.name).write_bytes(file.make())
    (root / "train" / "stray.jpg").write_bytes(FILES[0].make())
    absent = {}
    for entry in ENTRIES:
        try:
            entry.make(hostile / os.fsdecode(entry.name))
        except OSError as error:
            absent[shown(os.fsdecode(entry.name))] = str(error)
    return absent


def rows(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    root = tmp_path_factory.mktemp("hostile")
    folder, out = root / "photos", root / "packed"
    absent = filled(folder)
    flags = ["--workers", "2", "--shard-images", "50", "--spot-notice", "off"]
    ended = stoker("pack", folder, out, *flags, cwd=root)
    assert ended.code == 0, ended.stderr
    stored = {
        row["path"]: row | {"split": split, "sample": sample}
        for split in ("train", "val")
        for sample, row in enumerate(rows(out / split / "index.parquet"))
    }
    rejected = {row["path"]: row for row in rows(out / "rejected.parquet")}
    ignored = dict(list_folder(str(folder)).ignored)
    return Packed(folder, out, ended, stored, rejected, ignored, absent)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_what_becomes_of_each_file(packed: Packed, file: Hostile) -> None:
    path = f"{CLASS}/{file.name}"
    found = packed.outcome(path)
    assert found.startswith(file.outcome)
    if found in (KEPT, CONVERTED):
        row = packed.stored[path]
        assert (row["width"], row["height"]) == file.size
        assert packed.pixels_of(path).shape == (file.size[1], file.size[0], 3)
    else:
        assert packed.rejected[path]["split"] == "train"
        assert found.isprintable()
        assert len(found) < 300


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: ascii(entry.name)[:30])
def test_what_becomes_of_each_odd_name_and_thing(packed: Packed, entry: Entry) -> None:
    name = shown(os.fsdecode(entry.name))
    if name in packed.absent:
        pytest.skip(packed.absent[name])
    path = f"{CLASS}/{name}{entry.below}"
    if entry.found == TOO_DEEP:
        path = max((known for known in packed.passed_over if known.startswith(path)), key=len)
    assert packed.outcome(path).startswith(entry.outcome)


@pytest.mark.parametrize("number", range(1, 9))
def test_pictures_lie_upright_in_the_set(packed: Packed, number: int) -> None:
    path = f"{CLASS}/orientation-{number}.jpg"
    image = Image.open(io.BytesIO(packed.source(path))).convert("RGB")
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    upright = image.transpose(turns[number]) if number > 1 else image
    assert np.abs(packed.pixels_of(path) - np.asarray(upright)).mean() < 4
    assert packed.stored[path]["orientation"] == number


@pytest.mark.parametrize(
    "name", ["animated.gif", "animated.webp", "animated.png", "pages.tiff", "two-pictures.jpg"]
)
def test_of_several_pictures_the_first_is_taken(packed: Packed, name: str) -> None:
    stored = packed.pixels_of(f"{CLASS}/{name}")
    assert np.abs(stored - np.asarray(photo()).astype(int)).mean() < 8


@pytest.mark.parametrize("name", ["16-bit.png", "16-bit.tiff", "48-bit.png", "interlaced.png"])
def test_wide_and_interlaced_pictures_are_the_same_picture(packed: Packed, name: str) -> None:
    expected = photo().convert("L").convert("RGB") if name.startswith("16") else photo()
    stored = packed.pixels_of(f"{CLASS}/{name}")
    assert np.abs(stored - np.asarray(expected).astype(int)).mean() < 4


def test_the_report_counts_everything(packed: Packed) -> None:
    report = Dataset(packed.out).description["report"]
    assert sum(row["images"] for row in report["rejected"]) == len(packed.rejected)
    assert sum(row["entries"] for row in report["ignored"]) == len(packed.passed_over)
    assert len(packed.stored) + len(packed.rejected) == len(packed.listed)
    assert packed.passed_over["train/stray.jpg"] == "not inside a class folder"


def test_the_words_are_calm_and_the_memory_bounded(packed: Packed) -> None:
    said = packed.ended.stdout + packed.ended.stderr
    assert "Traceback" not in said
    assert "\x1b" not in said
    assert all(line.isprintable() for line in packed.ended.stdout.splitlines())
    assert packed.ended.peak_mib < PEAK_MIB
    assert sorted(packed.folder.parent.iterdir()) == [packed.out, packed.folder]


@pytest.mark.parametrize(
    "codec",
    [
        "jpeg",
        "original",
        "raw",
    ],
)
def test_all_that_is_accepted_decodes_in_training(
    packed: Packed, tmp_path: Path, codec: str
) -> None:
    storage = Storage(codec=codec, max_side=500)
    out = packed.out if codec == "jpeg" else tmp_path / codec
    if codec != "jpeg":
        pack(packed.folder, out, storage=storage, workers=1)
    assert seen(out) == seen(out)


def documented() -> dict[str, str]:
    """The table of docs/packing.md: what is found -> what becomes of it."""
    section = DOCS.read_text().split("## What becomes of a file")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    return {found: outcome for found, outcome in cells if found != "found"}


def test_every_outcome_is_documented_and_every_row_is_tested() -> None:
    table = documented()
    outcomes: dict[str, set[str]] = {OUTSIDE: {"passed over"}}
    for fixture in [*FILES, *ENTRIES]:
        outcomes.setdefault(fixture.found, set()).add(fixture.outcome.split(":")[0])
    assert set(outcomes) == set(table)
    for found, kinds in outcomes.items():
        assert all(kind in table[found] for kind in kinds), found


@pytest.mark.parametrize(
    ("more", "at"),
    [
        (2, 32),
        (1, 36),
        (1, 42),
        (-1, 46),
        (1 << 20, 50),
        (1 << 30, 32),
    ],
)
def test_a_table_that_a_file_brings_along_is_not_believed(
    tmp_path: Path, more: int, at: int
) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "plain.jpg").write_bytes(forged_table(0))
    (tmp_path / "photos" / "cat" / "forged.jpg").write_bytes(forged_table(more, at))
    out = pack(tmp_path / "photos", tmp_path / "out", val_share=0, workers=1)
    if Dataset(out).images("train") == 2:
        return
    index = pq.read_table(out / "train" / "index.parquet").to_pylist()
    cats = [(sample, row) for sample, row in enumerate(index) if row["path"].startswith("cat")]
    views = [rendered(out, sample, row) for sample, row in cats]
    for forged, plain in zip(*views, strict=True):
        # Encoded twice or once: the same picture, never other rows of it.
        assert np.abs(forged - plain).mean() < 4


def rendered(out: Path, sample: int, row: dict[str, Any]) -> list[Any]:
    """Crops that need only some rows of an image."""
    data = Dataset(out).split("train").bytes_of(sample)
    made = []
    for top in range(0, 150, 10):
        place = np.empty((16, 16, 3), np.uint8)
        render_jpeg(data, row["width"], row["height"], [60, top, 110, top + 50], False, place)
        made.append(place.astype(int))
    return made


def test_scans_are_counted_in_a_baseline_jpeg_too() -> None:
    with pytest.raises(Rejected, match="too many scans"):
        inspect(empty_scans(1500))
