"""What every place keeps that packs: one suite, over this machine, a SLURM array and Spark.

A subclass is collected where its place can run, and has a fixture `place`.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packing import as_tar, contents, files_below
from samples import image_folder, picture
from stoker.data.images.encode import Storage
from stoker.data.packing.options import PackOptions
from stoker.data.packing.pack import pack
from stoker.data.packing.shares import SharedPack

SHARD_IMAGES = 6
MANY, MANY_A_SHARD = 300, 10


class PackPlace(Protocol):
    """Where shards are written."""

    @property
    def forms(self) -> Sequence[str]:
        """The forms of a source that can be packed there."""

    def pack(self, source: Path, out: Path, shard_images: int) -> None:
        """Pack to the end."""

    def pack_with_a_kill(self, source: Path, out: Path, shard_images: int) -> None:
        """Pack to the end, though a worker is killed after some shards and before the last."""


def messy_folder(root: Path) -> Path:
    """Two classes, and files that are rejected, ignored, there twice or under several labels."""
    folder = image_folder(root, classes=2, images=12, val=3, size=(24, 20))
    train = folder / "train"
    picture(0, 900, (40, 96)).save(train / "class0" / "drawing.png")
    (train / "class1" / "empty.jpg").touch()
    (train / "class1" / "text.jpg").write_text("no image")
    (train / "class1" / "notes.txt").write_text("no image by name")
    first = (train / "class0" / "0000.jpg").read_bytes()
    for name in ("train/class0/again.jpg", "train/class1/other.jpg", "val/class1/leak.jpg"):
        (folder / name).write_bytes(first)
    return folder


def labelled(folder: Path) -> list[tuple[Path, str, str]]:
    """The images of a folder with their classes and splits."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".jpg", ".png"))
    return [(path, path.parent.name, path.parent.parent.name) for path in paths]


def as_list(folder: Path, file: Path) -> Path:
    rows = [(path, label, split) for path, label, split in labelled(folder)]
    rows.append((folder / "gone.jpg", "class0", "train"))
    with file.open("w", newline="") as text:
        csv.writer(text).writerows([("path", "label", "split"), *rows])
    return file


def as_table(folder: Path, file: Path) -> Path:
    found = labelled(folder)
    columns = {
        "image": [path.read_bytes() for path, _, _ in found],
        "label": [label for _, label, _ in found],
        "split": [split for _, _, split in found],
    }
    pq.write_table(pa.table(columns), file)
    return file


def source_of(form: str, root: Path) -> Path:
    folder = messy_folder(root / "photos")
    if form == "list":
        return as_list(folder, root / "list.csv")
    if form == "table":
        return as_table(folder, root / "table.parquet")
    if form == "archive":
        (root / "photos.tar").write_bytes(as_tar(files_below(folder)))
        return root / "photos.tar"
    return folder


def many_images(root: Path) -> Path:
    """Enough images that packing them lasts: a few pictures under many names."""
    for label in range(2):
        folder = root / f"class{label}"
        folder.mkdir(parents=True)
        picture(label, 0, (240, 180)).save(folder / "0000.jpg")
        for number in range(1, MANY // 2):
            os.link(folder / "0000.jpg", folder / f"{number:04d}.jpg")
    return root


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in sorted(folder.glob("*/*.tar"))}


class PackConformance:
    """The suite."""

    @pytest.mark.parametrize("form", ["folder", "list", "table", "archive"])
    def test_the_bytes_are_those_of_a_local_pack(
        self, place: PackPlace, tmp_path: Path, form: str
    ) -> None:
        if form not in place.forms:
            pytest.skip(f"packed by one machine here: {form}")
        source = source_of(form, tmp_path)
        pack(source, tmp_path / "here", shard_images=SHARD_IMAGES, workers=1)
        place.pack(source, tmp_path / "there", SHARD_IMAGES)
        assert contents(tmp_path / "there") == contents(tmp_path / "here")
        before = times(tmp_path / "there")
        place.pack(source, tmp_path / "there", SHARD_IMAGES)
        assert times(tmp_path / "there") == before

    def test_finished_shards_are_kept(self, place: PackPlace, tmp_path: Path) -> None:
        source = messy_folder(tmp_path / "photos")
        pack(source, tmp_path / "here", shard_images=SHARD_IMAGES, workers=1)
        options = PackOptions(shard_images=SHARD_IMAGES, workers=1)
        shared = SharedPack.of(str(source), tmp_path / "there", Storage(), options)
        request, _ = shared.prepare()
        shared.write(request, 0, 2, lambda report: None)
        before = times(tmp_path / "there")
        assert before
        place.pack(source, tmp_path / "there", SHARD_IMAGES)
        assert before.items() <= times(tmp_path / "there").items()
        assert contents(tmp_path / "there") == contents(tmp_path / "here")

    def test_a_killed_worker_costs_time_not_output(self, place: PackPlace, tmp_path: Path) -> None:
        source = many_images(tmp_path / "many")
        pack(source, tmp_path / "here", shard_images=MANY_A_SHARD, workers=2)
        place.pack_with_a_kill(source, tmp_path / "there", MANY_A_SHARD)
        assert contents(tmp_path / "there") == contents(tmp_path / "here")
