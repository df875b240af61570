"""A set with its index in partitions is the same set: for every reader, and when it is damaged."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parted_sets import pack_both, parted
from samples import image_folder
from stoker.commit import sha256_file
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.index import parted_rows
from stoker.data.index.parted_rows import PartedRows
from stoker.data.index.shard_table import SCHEMA, TABLE
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import InOrder, Order
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import Storage
from stoker.data.packing.tables import repeats
from stoker.data.verify import verify
from stoker.errors import StokerError
from stoker.recipe.schedule import Batch
from wrong_sets import describe

COLUMNS = ("shard", "offset", "length", "labels", "widths", "heights")
Pair = tuple[Path, Path]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Each codec: the same images with a whole index and with one in partitions."""
    root = tmp_path_factory.mktemp("pairs")
    folder = image_folder(root / "photos", images=20, val=3)
    train = folder / "train"
    (train / "class0" / "broken.jpg").write_text("no image")
    example = next((train / "class1").glob("*.jpg"))
    shutil.copy(example, train / "class0" / "again.jpg")
    shutil.copy(example, folder / "val" / "class1" / "again.jpg")
    return {
        codec: pack_both(folder, root / codec, storage=Storage(codec), shard_images=8)
        for codec in ("jpeg", "raw", "original")
    }


@pytest.fixture
def damaged(pairs: dict[str, Pair], tmp_path: Path) -> Path:
    """A copy with partitions, to be damaged."""
    return shutil.copytree(pairs["jpeg"][1], tmp_path / "packed")


def batches(dataset: Dataset, order: Any = None, steps: int = 6) -> list[tuple[bytes, list[int]]]:
    """Two epochs of training."""
    split = dataset.split("train")
    order = order or Order(split.shard_sizes, dataset.fingerprint, 0, lanes=2, window=16)
    plan = [Batch(step, step * 16, 16, 24) for step in range(steps)]
    loader = BatchLoader(split, order, View(crop="resized", hflip=True), threads=2)
    try:
        return [(b.images.tobytes(), b.labels.tolist()) for b in loader.batches(plan)]
    finally:
        loader.close()


@pytest.mark.parametrize("codec", ["jpeg", "raw", "original"])
class TestTheSameSet:
    def test_all_but_the_index_is_equal(self, pairs: dict[str, Pair], codec: str) -> None:
        whole, there = (Dataset(path) for path in pairs[codec])
        assert whole.fingerprint == there.fingerprint
        assert whole.description["report"] == there.description["report"]
        assert whole.description["report"]["duplicates"]["conflicts"]["pairs"]
        for split in ("train", "val"):
            assert list(whole.shards(split)) == list(there.shards(split))
        assert (whole.description["format"], there.description["format"]) == (1, 2)

    def test_every_column(self, pairs: dict[str, Pair], codec: str) -> None:
        whole, there = (Dataset(path).split("train") for path in pairs[codec])
        some = np.array([17, 3, 3, len(whole) - 1, 40])
        for name in COLUMNS:
            column, parts = getattr(whole, name), getattr(there, name)
            assert len(parts) == len(column)
            assert np.array_equal(parts[:], column)
            assert np.array_equal(parts[5:31], column[5:31])
            assert np.array_equal(parts[some], column[some])
            assert parts[some].dtype == column.dtype
            assert [parts[n] for n in range(len(column))] == column.tolist()
        for sample in range(len(whole)):
            assert there.rows.hash_of(sample) == whole.rows.hash_of(sample)
            assert there.bytes_of(sample) == whole.bytes_of(sample)

    def test_everything_that_is_asked_of_all_rows(self, pairs: dict[str, Pair], codec: str) -> None:
        whole, there = (Dataset(path).split("train") for path in pairs[codec])
        assert there.largest == whole.largest
        assert there.rows.mean_bytes == whole.rows.mean_bytes
        assert there.rows.even_side == whole.rows.even_side
        assert there.rows.class_counts.tolist() == whole.rows.class_counts.tolist()
        assert [c.tolist() for c in there.rows.some_sizes()] == [
            c.tolist() for c in whole.rows.some_sizes()
        ]
        assert list(there.rows.paths()) == list(whole.rows.paths())
        assert there.rows.paths_of([41, 0, 7]) == whole.rows.paths_of([41, 0, 7])
        assert (
            there.origin_of(9).partition("train/")[2] == whole.origin_of(9).partition("train/")[2]
        )

    def test_batches(self, pairs: dict[str, Pair], codec: str) -> None:
        whole, there = (Dataset(path) for path in pairs[codec])
        assert batches(there) == batches(whole)
        assert batches(there, InOrder(), 3) == batches(whole, InOrder(), 3)

    def test_it_verifies(self, pairs: dict[str, Pair], codec: str) -> None:
        whole, there = (verify(path) for path in pairs[codec])
        assert (there.problems, there.notes) == ([], [])
        assert (there.images, there.shards) == (whole.images, whole.shards)
        path = pairs[codec][1]
        tables = [*path.glob("*/*.parquet"), *path.glob("*/rows/*"), path / "rejected.parquet"]
        files = [*path.glob("*/*.tar"), *tables]
        assert there.bytes == sum(file.stat().st_size for file in files)


class TestReading:
    def test_only_the_rows_that_are_needed_are_read(self, damaged: Path) -> None:
        rows = damaged / "train" / "rows"
        for number in (0, 1, 3):
            (rows / f"{number:05d}.parquet").unlink()
        split = Dataset(damaged).split("train")
        begin, end = split.shard_sizes[:2].sum(), split.shard_sizes[:3].sum()
        assert len(split.labels[np.arange(begin, end)]) == end - begin
        with pytest.raises(StokerError, match=r"cannot read .*rows.00003\.parquet"):
            split.labels[end]

    def test_few_rows_are_kept(
        self, pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, there = (Dataset(path).split("train") for path in pairs["jpeg"])
        monkeypatch.setattr(parted_rows, "KEPT_ROWS", 16)
        assert isinstance(there.rows, PartedRows)
        for sample in np.random.default_rng(0).permutation(len(whole)).tolist():
            assert there.labels[sample] == whole.labels[sample]
            assert there.rows._rows <= 16
        assert there.rows._rows == sum(len(part.label) for part in there.rows._parts.values())

    def test_threads_read_the_same(
        self, pairs: dict[str, Pair], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, there = (Dataset(path).split("train") for path in pairs["jpeg"])
        monkeypatch.setattr(parted_rows, "KEPT_ROWS", 20)
        wrong = []

        def read(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(60):
                some = random.integers(0, len(whole), 12)
                if not np.array_equal(there.offset[some], whole.offset[some]):
                    wrong.append(some)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []

    @pytest.mark.parametrize("sample", [-1, 10_000])
    def test_no_other_sample_is_taken(self, pairs: dict[str, Pair], sample: int) -> None:
        split = Dataset(pairs["jpeg"][1]).split("train")
        with pytest.raises(IndexError):
            split.labels[sample]
        with pytest.raises(IndexError):
            split.labels[np.array([0, sample])]

    def test_looking_ahead_beyond_the_end_reads_what_there_is(self, pairs: dict[str, Pair]) -> None:
        split = Dataset(pairs["jpeg"][1]).split("train")
        split.rows.prepare(np.arange(len(split) - 1, len(split) + 50))
        assert split.labels[len(split) - 1] >= 0


def test_a_split_is_parted_by_its_own_size(pairs: dict[str, Pair], tmp_path: Path) -> None:
    folder = pairs["jpeg"][0].parent.parent / "photos"
    with parted(above=20):
        dataset = Dataset(pack(folder, tmp_path / "set", workers=1, shard_images=8))
    assert dataset.split("train").is_parted
    assert not dataset.split("val").is_parted
    assert verify(dataset.path).problems == []


def test_a_pack_that_is_killed_while_it_counts_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it leaves in the target is known as its own."""
    folder, made = image_folder(tmp_path / "photos", images=20), list[Path]()

    def killed(parts: object, files: list[Path]) -> None:
        made.append(files[0].parent)
        raise KeyboardInterrupt

    with parted(), monkeypatch.context() as patched:
        patched.setattr(repeats, "sort_hashes", killed)
        with pytest.raises(KeyboardInterrupt):
            pack(folder, tmp_path / "set", workers=1, shard_images=8)
    made[0].mkdir()  # a kill removes nothing
    (made[0] / "0").write_bytes(b"hashes")
    with parted():
        packed = pack(folder, tmp_path / "set", workers=1, shard_images=8)
    report = verify(packed)
    assert (report.problems, report.notes) == ([], [])


def test_packing_again_with_a_whole_index_leaves_no_rows(tmp_path: Path) -> None:
    """An interrupted pack may have left rows: they are removed."""
    folder = image_folder(tmp_path / "photos", images=20)
    left = tmp_path / "set" / "train" / "rows" / "00000.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of another pack")
    packed = pack(folder, tmp_path / "set", workers=1, shard_images=8)
    assert not left.parent.exists()
    assert verify(packed).problems == []


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rows(root: Path, number: int) -> Path:
    return root / "train" / "rows" / f"{number:05d}.parquet"


def with_rows(root: Path, number: int, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the rows of a shard, with all hashes made right again."""
    pq.write_table(change(pq.read_table(rows(root, number))), rows(root, number))
    file, columns = root / "train" / TABLE, pq.read_table(root / "train" / TABLE).to_pydict()
    columns["rows_bytes"][number] = rows(root, number).stat().st_size
    columns["rows_sha256"][number] = bytes.fromhex(sha256_file(rows(root, number)))
    pq.write_table(pa.Table.from_pydict(columns, schema=SCHEMA), file)
    digest = sha256_file(file)
    describe(root, lambda facts: facts["splits"]["train"].update(shards_sha256=digest))


def value(name: str, wrong: int, row: int = 3) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        columns = table.to_pydict()
        columns[name][row] = wrong
        return pa.Table.from_pydict(columns, schema=table.schema)

    return change


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def swap(root: Path) -> None:
    one, other = rows(root, 1), rows(root, 2)
    first = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(first)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (lambda root: piped(rows(root, 1)), "rows/00001.parquet: not a regular file"),
    "a bit": (lambda root: flipped(rows(root, 1)), "rows/00001.parquet: damaged: its hash"),
    "missing": (lambda root: rows(root, 1).unlink(), "rows/00001.parquet: missing"),
    "swapped": (swap, "rows/00001.parquet: damaged"),
    "longer": (lambda root: rows(root, 1).open("ab").write(b"x" * 9), "longer than shards.parquet"),
    "empty": (lambda root: rows(root, 1).write_bytes(b""), "rows/00001.parquet: damaged"),
    "label": (
        lambda root: with_rows(root, 1, value("label", 99)),
        "rows/00001.parquet: row 3 has label 99",
    ),
    "outside": (
        lambda root: with_rows(root, 1, value("offset", 1 << 40)),
        "rows/00001.parquet: row 3 points outside its shard",
    ),
    "another shard": (
        lambda root: with_rows(root, 1, value("shard", 2)),
        "rows/00001.parquet: its rows are not the images of the shards",
    ),
    "fewer rows": (
        lambda root: with_rows(root, 1, lambda table: table.slice(1)),
        "rows/00001.parquet: it has 6 rows, and the shards have 7 images",
    ),
    "no hashes": (
        lambda root: with_rows(root, 1, lambda table: table.drop_columns(["hash"])),
        "rows/00001.parquet: it has no column hash",
    ),
    "no column": (
        lambda root: with_rows(root, 1, lambda table: table.drop_columns(["width"])),
        "rows/00001.parquet: cannot be read as an index: it has no column width",
    ),
    "larger": (
        lambda root: describe(root, lambda d: d["splits"]["train"].update(largest=[10, 10])),
        "it has a larger image than dataset.json states",
    ),
    "squares": (
        lambda root: describe(root, lambda d: d["splits"]["train"].update(even_side=8)),
        "its images are not the squares of one size",
    ),
}


class TestDamage:
    @pytest.mark.parametrize("name", list(DAMAGE))
    def test_of_rows_is_named(self, damaged: Path, name: str) -> None:
        change, text = DAMAGE[name]
        change(damaged)
        problems = [str(problem) for problem in verify(damaged).problems]
        assert any(text in problem for problem in problems), problems
        with pytest.raises(StokerError, match=r"rows"):
            Dataset(damaged).split("train").labels[np.arange(8, 24)]

    def test_of_an_image_is_named_from_its_rows(self, damaged: Path) -> None:
        split = Dataset(damaged).split("train")
        tar, place = damaged / "train" / "00001.tar", int(split.offset[11]) + 5
        data = bytearray(tar.read_bytes())
        data[place] ^= 4
        tar.write_bytes(data)
        (path,) = split.rows.paths_of([11])
        (problem,) = [str(problem) for problem in verify(damaged).problems]
        assert problem.startswith("train/00001.tar: image") and problem.endswith(f"(from {path})")

    def test_of_a_shard_and_its_rows(self, damaged: Path) -> None:
        flipped(rows(damaged, 1))
        tar = damaged / "train" / "00001.tar"
        tar.write_bytes(tar.read_bytes()[:-1] + b"\1")
        problems = [str(problem) for problem in verify(damaged).problems]
        assert [text.partition(":")[0] for text in problems] == [
            "train/rows/00001.parquet",
            "train/00001.tar",
        ]

    @pytest.mark.parametrize(
        "name",
        ["rows/77777.parquet", "rows/000001.parquet", "77777.tar", "index.parquet", "rows/0.tar"],
    )
    def test_a_file_that_is_not_listed(self, damaged: Path, name: str) -> None:
        shutil.copy(rows(damaged, 0), damaged / "train" / name)
        (problem,) = verify(damaged).problems
        assert str(problem) == f"train/{name}: not in dataset.json"

    def test_a_description_of_endless_shards_is_answered(self, damaged: Path) -> None:
        describe(damaged, lambda d: d["splits"]["train"].update(shard_count=10**15))
        (problem,) = verify(damaged).problems
        assert "other shards, images or bytes than dataset.json" in str(problem)
        with pytest.raises(StokerError, match="other shards, images or bytes"):
            Dataset(damaged).split("train")

    @pytest.mark.parametrize("how", ["bit", "missing", "other", "text", "pipe"])
    def test_of_the_table_of_shards(self, damaged: Path, how: str) -> None:
        table = damaged / "train" / TABLE
        if how == "bit":
            flipped(table)
        elif how == "missing":
            table.unlink()
        elif how == "pipe":
            piped(table)
        else:
            if how == "other":
                pq.write_table(pq.read_table(table).slice(1), table)
            else:
                table.write_text("no table")
            digest = sha256_file(table)
            describe(damaged, lambda d: d["splits"]["train"].update(shards_sha256=digest))
        with pytest.raises(StokerError, match=r"shards\.parquet is damaged"):
            Dataset(damaged).split("train")
        problems = verify(damaged).problems
        assert [problem.file for problem in problems] == ["train/shards.parquet"]

    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("shard_count", -1),
            ("shard_count", 10**30),
            ("shard_count", "7"),
            ("images", 1),
            ("shard_bytes", None),
            ("stored_bytes", 1.5),
            ("even_side", True),
            ("largest", [1]),
            ("largest", ["1", 2]),
            ("class_counts", [1]),
            ("class_counts", [61, -1, 0]),
            ("class_counts", {}),
            ("shards_sha256", 5),
        ],
    )
    def test_of_the_description(self, damaged: Path, name: str, wrong: Any) -> None:
        describe(damaged, lambda d: d["splits"]["train"].update({name: wrong}))
        with pytest.raises(StokerError, match=r"dataset\.json is damaged"):
            Dataset(damaged)

    @pytest.mark.parametrize("name", ["shard_count", "images", "shard_bytes"])
    def test_of_a_count_that_the_table_has_otherwise(self, damaged: Path, name: str) -> None:
        def change(description: dict[str, Any]) -> None:
            facts = description["splits"]["train"]
            facts[name] += 1
            if name == "images":
                facts["class_counts"][0] += 1

        describe(damaged, change)
        with pytest.raises(StokerError, match=r"other shards, images or bytes"):
            Dataset(damaged).split("train")


def test_no_name_leads_out_of_the_set(pairs: dict[str, Pair]) -> None:
    """Names follow from numbers: a description of a large split has none."""
    facts = json.loads((pairs["jpeg"][1] / "dataset.json").read_text())["splits"]["train"]
    assert ".tar" not in json.dumps(facts) and "/" not in json.dumps(facts)


def test_a_split_is_a_split(pairs: dict[str, Pair]) -> None:
    assert isinstance(Dataset(pairs["raw"][1]).split("val"), SplitIndex)
