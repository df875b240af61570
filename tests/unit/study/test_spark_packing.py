"""What a worker of Spark writes, refuses and counts; without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pack_conformance import messy_folder
from packing import contents
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import (
    Files,
    LocalProcesses,
    PartCounts,
    Parts,
    ShardReport,
    ShardTask,
)
from stoker.errors import BadRequest, StokerError
from stoker.fleet.spark.session import SparkCluster
from stoker.study.spark_packing import (
    COUNT_ROWS,
    COUNT_SETTING,
    SparkPlace,
    Unseen,
    landmark,
    part_pairs,
    reduce_counts,
    resolved,
    seen_here,
    write_there,
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return messy_folder(tmp_path / "photos")


def task_of(photos: Path, out: Path, *paths: str) -> ShardTask:
    names = paths or ("train/class0/0000.jpg", "train/class1/0001.jpg")
    files = Files(str(photos), names)
    return ShardTask(str(out), "train", 0, 0, files, (0,) * len(names), Storage())


class TestWriteThere:
    def test_a_worker_that_sees_everything_writes(self, photos: Path, tmp_path: Path) -> None:
        task = task_of(photos, tmp_path / "out")
        with landmark(tmp_path / "out") as mark:
            report = write_there(mark, task)
        assert isinstance(report, ShardReport)
        assert report.images == 2
        assert task.tar.is_file()
        assert not list((tmp_path / "out" / ".parts").glob("seen-*"))

    def test_a_worker_with_another_disk_writes_nothing(self, photos: Path, tmp_path: Path) -> None:
        task = task_of(photos, tmp_path / "out")
        with pytest.raises(StokerError, match="a disk that all workers share"):
            write_there(str(tmp_path / "out" / ".parts" / "seen-0"), task)
        assert not (tmp_path / "out").exists()

    def test_a_second_try_leaves_a_finished_set_alone(self, photos: Path, tmp_path: Path) -> None:
        pack(photos, tmp_path / "out", workers=1)
        before = contents(tmp_path / "out")
        late = write_there(
            str(tmp_path / "out" / ".parts" / "seen-0"), task_of(photos, tmp_path / "out")
        )
        assert isinstance(late, ShardReport)
        assert contents(tmp_path / "out") == before

    def test_images_that_only_this_machine_sees_are_not_rejected(
        self, photos: Path, tmp_path: Path
    ) -> None:
        task = task_of(photos, tmp_path / "out")
        hidden = photos.rename(tmp_path / "hidden")
        with landmark(tmp_path / "out") as mark:
            unseen = write_there(mark, task)
        assert isinstance(unseen, Unseen)
        hidden.rename(photos)
        with pytest.raises(StokerError, match=r"does not see .*0000\.jpg"):
            seen_here(task, unseen)

    def test_images_that_no_machine_sees_are_rejected_as_everywhere(
        self, photos: Path, tmp_path: Path
    ) -> None:
        task = task_of(photos, tmp_path / "out", "gone.jpg")
        with landmark(tmp_path / "out") as mark:
            unseen = write_there(mark, task)
        assert isinstance(unseen, Unseen)
        assert seen_here(task, unseen).rejected == 1


def test_places_are_named_so_that_every_machine_finds_them(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    task = resolved(task_of(Path("photos"), Path("out")))
    assert task.out == str(tmp_path / "out")
    assert isinstance(task.inputs, Files)
    assert task.inputs.root == str(photos)
    assert task.digest() == task_of(photos, tmp_path / "out").digest()
    stored = resolved(replace(task, out="s3://bucket/set"))
    assert stored.out == "s3://bucket/set"


class Counting:
    """Counts the parts as the workers do, in this process: a TaskPlace."""

    def __init__(self, groups: int) -> None:
        self.groups, self.kept = groups, Path()

    def write(self, tasks: Iterator[ShardTask]) -> Generator[ShardReport]:
        return LocalProcesses(1).write(tasks)

    def count(self, parts: Parts, rows: int, classes: int) -> PartCounts:
        grouped: dict[Any, list[bytes]] = {}
        for split, paths in parts.items():
            for path in paths:
                for key, value in part_pairs(classes, self.groups, [(split, str(path))]):
                    grouped.setdefault(key, []).append(value)
        results = [reduce_counts(key, values) for key, values in grouped.items()]
        labels = {key: value for key, value in results if isinstance(key, str)}
        repeated = b"".join(value for key, value in results if not isinstance(key, str))
        return PartCounts(labels, np.frombuffer(repeated, "V16"))


@pytest.mark.parametrize("groups", [1, 3, 100])
def test_counted_in_groups_the_set_has_the_same_bytes(
    photos: Path, tmp_path: Path, groups: int
) -> None:
    pack(photos, tmp_path / "one", shard_images=4, workers=1)
    pack(photos, tmp_path / "two", shard_images=4, place=Counting(groups))
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    report = pq.read_table(tmp_path / "one" / "rejected.parquet")
    assert report.num_rows == 2


def test_without_any_duplicate_too(tmp_path: Path) -> None:
    photos = messy_folder(tmp_path / "photos")
    for name in ("train/class0/again.jpg", "train/class1/other.jpg", "val/class1/leak.jpg"):
        (photos / name).unlink()
    shutil.rmtree(photos / "val")
    pack(photos, tmp_path / "one", shard_images=4, workers=1, val_share=0)
    pack(photos, tmp_path / "two", shard_images=4, place=Counting(2), val_share=0)
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


class TestSettings:
    def place(self, rows: str | None = None) -> SparkPlace:
        named = {} if rows is None else {COUNT_SETTING: rows}
        return SparkPlace.of(SparkCluster("local[1]", named, print), Path("out"))

    def test_the_number_of_rows(self) -> None:
        assert self.place().count_rows == COUNT_ROWS
        assert self.place(rows="7").count_rows == 7

    @pytest.mark.parametrize("text", ["", "-1", "many", "1" * 30])
    def test_another_text_is_refused(self, text: str) -> None:
        with pytest.raises(BadRequest, match="must be a whole number"):
            self.place(rows=text)

    def test_few_rows_are_counted_here_without_a_session(self) -> None:
        assert self.place().count({}, COUNT_ROWS - 1, 2) is None
