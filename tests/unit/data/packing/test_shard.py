"""A shard follows from its task alone, and is done once."""

from __future__ import annotations

import io
import os
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from samples import picture
from stoker.data.images.encode import Storage
from stoker.data.packing.shard import Files, ShardTask, write_shard

LABELS = {"small.jpg": 0, "large.jpg": 1, "tall.png": 2, "turned.jpg": 1, "text.jpg": 0}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    turned = Image.Exif()
    turned[0x0112] = 6
    picture(0, 0, (60, 40)).save(folder / "small.jpg")
    picture(1, 1, (300, 200)).save(folder / "large.jpg")
    picture(2, 2, (50, 170)).save(folder / "tall.png")
    picture(1, 3, (60, 40)).save(folder / "turned.jpg", exif=turned)
    (folder / "text.jpg").write_text("no image")
    return folder


@pytest.fixture
def task(images: Path, tmp_path: Path) -> ShardTask:
    return ShardTask(
        out=str(tmp_path / "out"),
        split="train",
        number=3,
        first_key=70,
        inputs=Files(str(images), tuple(LABELS)),
        labels=tuple(LABELS.values()),
        storage=Storage(max_side=100),
    )


def named(task: ShardTask, *paths: str) -> Files:
    assert isinstance(task.inputs, Files)
    return replace(task.inputs, paths=paths)


def rows_of(task: ShardTask) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in pq.read_table(task.part).to_pylist()}


def members_of(task: ShardTask) -> dict[str, bytes]:
    with tarfile.open(task.tar) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}


def as_long_ago(path: Path) -> int:
    """Set a file's time far back, so that writing it again shows."""
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path.stat().st_mtime_ns


class TestWhatIsWritten:
    def test_report_counts_images_and_rejects(self, task: ShardTask) -> None:
        report = write_shard(task)
        assert (report.images, report.rejected) == (4, 1)
        assert report.bytes == task.tar.stat().st_size

    def test_tar_holds_an_image_and_a_label_under_each_key(self, task: ShardTask) -> None:
        write_shard(task)
        members = members_of(task)
        keys = ["000000070", "000000071", "000000072", "000000073"]
        assert list(members) == [f"{key}.{end}" for key in keys for end in ("jpg", "cls")]
        assert [members[f"{key}.cls"] for key in keys] == [b"0", b"1", b"2", b"1"]
        for key in keys:
            Image.open(io.BytesIO(members[f"{key}.jpg"])).load()

    @pytest.mark.parametrize("codec", ["jpeg", "raw"])
    def test_rows_point_at_the_very_bytes_of_the_members(self, task: ShardTask, codec: str) -> None:
        task = replace(task, storage=replace(task.storage, codec=codec))
        write_shard(task)
        tar, members = task.tar.read_bytes(), members_of(task)
        suffix = {"jpeg": "jpg", "raw": "npy"}[codec]
        good = [row for row in rows_of(task).values() if row["reason"] is None]
        assert len(good) == 4
        for row in good:
            stored = tar[row["offset"] : row["offset"] + row["length"]]
            assert stored == members[f"{row['key']}.{suffix}"]
            assert row["shard"] == 3

    def test_a_rejected_image_is_a_row_with_path_and_reason(self, task: ShardTask) -> None:
        write_shard(task)
        row = rows_of(task)["text.jpg"]
        assert "not an image" in row["reason"]
        assert (row["label"], row["offset"], row["shard"]) == (0, None, None)

    def test_a_file_that_vanished_is_a_row_with_path_and_reason(self, task: ShardTask) -> None:
        write_shard(replace(task, inputs=named(task, "gone.jpg", "small.jpg"), labels=(0, 0)))
        assert "cannot read" in rows_of(task)["gone.jpg"]["reason"]
        assert rows_of(task)["small.jpg"]["reason"] is None

    def test_an_image_too_wide_for_a_jpeg_is_a_row_with_a_reason(
        self, task: ShardTask, tmp_path: Path
    ) -> None:
        Image.new("RGB", (70_000, 2)).save(tmp_path / "wide.png")
        storage = replace(task.storage, max_side=0)
        wide = Files(str(tmp_path), ("wide.png",))
        task = replace(task, inputs=wide, labels=(0,), storage=storage)
        assert write_shard(task).rejected == 1
        assert rows_of(task)["wide.png"]["reason"]

    def test_names_that_are_not_utf8_are_packed(self, task: ShardTask, tmp_path: Path) -> None:
        name = os.fsdecode(b"caf\xe9.jpg")
        picture(0, 0, (20, 20)).save(tmp_path / name, "JPEG")
        write_shard(replace(task, inputs=Files(str(tmp_path), (name,)), labels=(0,)))
        assert rows_of(task)["caf\\xe9.jpg"]["reason"] is None


class TestHowImagesAreStored:
    def test_a_small_upright_baseline_jpeg_keeps_its_bytes(
        self, task: ShardTask, images: Path
    ) -> None:
        write_shard(task)
        assert members_of(task)["000000070.jpg"] == (images / "small.jpg").read_bytes()

    def test_nothing_is_resized_where_max_side_is_zero(self, task: ShardTask, images: Path) -> None:
        write_shard(replace(task, storage=Storage(max_side=0)))
        assert members_of(task)["000000071.jpg"] == (images / "large.jpg").read_bytes()

    @pytest.mark.parametrize(("path", "size"), [("large.jpg", (100, 67)), ("tall.png", (29, 100))])
    def test_the_longer_side_is_shrunk_to_max_side(
        self, task: ShardTask, path: str, size: tuple[int, int]
    ) -> None:
        write_shard(task)
        row = rows_of(task)[path]
        assert (row["width"], row["height"]) == size
        assert Image.open(io.BytesIO(members_of(task)[f"{row['key']}.jpg"])).size == size

    def test_a_turned_image_is_stored_upright(self, task: ShardTask) -> None:
        write_shard(task)
        row = rows_of(task)["turned.jpg"]
        stored = Image.open(io.BytesIO(members_of(task)[f"{row['key']}.jpg"]))
        assert stored.size == (row["width"], row["height"]) == (40, 60)
        assert 0x0112 not in stored.getexif()
        assert row["orientation"] == 6

    def test_quality_is_that_of_images_encoded_again(self, task: ShardTask) -> None:
        write_shard(task)
        fine = rows_of(task)
        write_shard(replace(task, storage=replace(task.storage, quality=30)))
        coarse = rows_of(task)
        assert coarse["large.jpg"]["length"] < fine["large.jpg"]["length"]
        assert coarse["small.jpg"]["length"] == fine["small.jpg"]["length"]

    def test_raw_members_load_as_arrays(self, task: ShardTask, images: Path) -> None:
        write_shard(replace(task, storage=Storage(codec="raw", max_side=100)))
        members, rows = members_of(task), rows_of(task)
        for path in ("small.jpg", "large.jpg", "tall.png", "turned.jpg"):
            row = rows[path]
            pixels = np.load(io.BytesIO(members[f"{row['key']}.npy"]))
            assert pixels.shape == (row["height"], row["width"], 3)
            assert pixels.dtype == np.uint8
        small = np.load(io.BytesIO(members["000000070.npy"]))
        np.testing.assert_array_equal(small, np.asarray(Image.open(images / "small.jpg")))

    def test_the_same_picture_in_two_files_has_the_same_pixel_hash(
        self, task: ShardTask, tmp_path: Path
    ) -> None:
        picture(0, 0, (30, 20)).save(tmp_path / "one.png", compress_level=1)
        picture(0, 0, (30, 20)).save(tmp_path / "two.bmp")
        picture(0, 1, (30, 20)).save(tmp_path / "other.png")
        paths = ("one.png", "two.bmp", "other.png")
        write_shard(replace(task, inputs=Files(str(tmp_path), paths), labels=(0, 0, 0)))
        one, two, other = (rows_of(task)[path]["pixels"] for path in paths)
        assert one == two != other


class TestDoneOnce:
    @pytest.mark.parametrize("codec", ["jpeg", "raw"])
    def test_the_same_task_elsewhere_gives_the_same_bytes(
        self, task: ShardTask, tmp_path: Path, codec: str
    ) -> None:
        task = replace(task, storage=replace(task.storage, codec=codec))
        again = replace(task, out=str(tmp_path / "again"))
        write_shard(task)
        write_shard(again)
        assert task.tar.read_bytes() == again.tar.read_bytes()
        assert task.part.read_bytes() == again.part.read_bytes()

    def test_the_second_time_nothing_is_written(self, task: ShardTask) -> None:
        first = write_shard(task)
        before = as_long_ago(task.tar), as_long_ago(task.part)
        assert write_shard(task) == first
        assert (task.tar.stat().st_mtime_ns, task.part.stat().st_mtime_ns) == before

    @pytest.mark.parametrize("damage", ["tar flipped", "tar cut", "tar gone", "part cut"])
    def test_what_was_damaged_is_written_again(self, task: ShardTask, damage: str) -> None:
        write_shard(task)
        whole = task.tar.read_bytes()
        match damage:
            case "tar flipped":
                task.tar.write_bytes(whole[:999] + bytes([whole[999] ^ 1]) + whole[1000:])
            case "tar cut":
                task.tar.write_bytes(whole[:-512])
            case "tar gone":
                task.tar.unlink()
            case "part cut":
                task.part.write_bytes(task.part.read_bytes()[:-9])
        assert write_shard(task).images == 4
        assert task.tar.read_bytes() == whole

    def test_a_tar_without_its_part_does_not_count(self, task: ShardTask) -> None:
        write_shard(task)
        task.part.unlink()
        before = as_long_ago(task.tar)
        write_shard(task)
        assert task.tar.stat().st_mtime_ns != before
        assert task.part.exists()

    @pytest.mark.parametrize(
        "change",
        [
            {"paths": ("large.jpg", "small.jpg"), "labels": (1, 0)},
            {"paths": ("small.jpg",), "labels": (2,)},
            {"first_key": 71},
            {"storage": Storage(max_side=50)},
            {"storage": Storage(max_side=100, quality=50)},
            {"storage": Storage(max_side=100, codec="raw")},
        ],
        ids=["other images", "other labels", "other keys", "other size", "quality", "codec"],
    )
    def test_another_task_in_the_same_place_is_written_again(
        self, task: ShardTask, tmp_path: Path, change: dict[str, Any]
    ) -> None:
        write_shard(task)
        if "paths" in change:
            change = change | {"inputs": named(task, *change["paths"])}
        other = replace(task, **{name: value for name, value in change.items() if name != "paths"})
        elsewhere = replace(other, out=str(tmp_path / "elsewhere"))
        write_shard(other)
        write_shard(elsewhere)
        assert other.tar.read_bytes() == elsewhere.tar.read_bytes()

    def test_no_drafts_are_left(self, task: ShardTask) -> None:
        write_shard(task)
        files = sorted(path.name for path in Path(task.out).rglob("*") if path.is_file())
        assert files == ["00003.tar", "train-00003.parquet"]
