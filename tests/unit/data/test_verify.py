"""One flipped bit anywhere in a set is found, and the right file and image are named."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from golden import check_golden
from samples import image_folder
from stoker.commit import json_bytes, sha256_file
from stoker.data import image_hashes
from stoker.data import verify as module
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import Storage
from stoker.data.seal import SOURCE_CACHE, WALK_CACHE, digest_of, is_sealed, seal_holds, sealed
from stoker.data.verify import MOST_NAMED, read_description, verify
from stoker.errors import BadRequest, StokerError
from wrong_sets import TOO_FEW_CLASSES, WRONG_DESCRIPTIONS, WRONG_INDEXES

FLIPS = 200
OUTSIDE = "damaged outside the images"


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Thirty training images (and one that was rejected) in four shards, in each codec."""
    root = tmp_path_factory.mktemp("sets")
    folder = image_folder(root / "photos", images=10, val=3)
    (folder / "train" / "class0" / "broken.jpg").write_text("no image")
    return {
        codec: pack(folder, root / codec, storage=Storage(codec), workers=1, shard_images=8)
        for codec in ("jpeg", "raw")
    }


@pytest.fixture
def damaged(sets: dict[str, Path], tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return shutil.copytree(sets["jpeg"], tmp_path / "packed")


def files_of(folder: Path) -> list[str]:
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    return sorted(name for name in names if name not in (WALK_CACHE, SOURCE_CACHE))


def rows_of(folder: Path, split: str) -> list[dict[str, Any]]:
    return pq.read_table(folder / split / "index.parquet").to_pylist()


def problems_of(folder: Path) -> list[str]:
    return [str(problem) for problem in verify(folder).problems]


def flip(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ (1 << bit)]))


@pytest.mark.parametrize("codec", ["jpeg", "raw"])
def test_a_whole_set_holds(sets: dict[str, Path], codec: str) -> None:
    report = verify(sets[codec])
    assert (report.problems, report.notes) == ([], [])
    assert (report.images, report.shards) == (39, 6)
    names = [name for name in files_of(sets[codec]) if name != "dataset.json"]
    assert report.bytes == sum((sets[codec] / name).stat().st_size for name in names)


@pytest.mark.parametrize("codec", ["jpeg", "raw"])
def test_any_flipped_bit_is_found_and_its_file_and_image_named(
    sets: dict[str, Path], tmp_path: Path, codec: str
) -> None:
    folder = shutil.copytree(sets[codec], tmp_path / "packed")
    names = files_of(folder)
    rows = {split: rows_of(folder, split) for split in ("train", "val")}
    chance, images_hit, else_hit = random.Random(f"flips of {codec}"), 0, 0
    for number in range(FLIPS):
        name = names[number % len(names)]
        path = folder / name
        place, bit = chance.randrange(path.stat().st_size), chance.randrange(8)
        flip(path, place, bit)
        problems = verify(folder, threads=1).problems
        flip(path, place, bit)
        assert [problem.file for problem in problems] == [name], (name, place, bit)
        if name.endswith(".tar"):
            split, shard = name.split("/")
            hit = [
                row
                for row in rows[split]
                if row["shard"] == int(shard[:5])
                and row["offset"] <= place < row["offset"] + row["length"]
            ]
            assert len(problems) == max(len(hit), 1)
            for problem, row in zip(problems, hit, strict=False):
                assert f"image {row['key']} at byte {row['offset']} " in problem.text
                assert row["path"] in problem.text
            assert bool(hit) != problems[0].text.startswith(OUTSIDE)
            images_hit, else_hit = images_hit + len(hit), else_hit + (not hit)
    assert images_hit > FLIPS // 8
    assert else_hit > FLIPS // 20
    assert problems_of(folder) == []


def test_every_single_bit_of_the_description_counts(damaged: Path) -> None:
    path = damaged / "dataset.json"
    small = json.loads(path.read_text())
    # Numbers and letters that have two spellings in JSON.
    small["report"] = {"share": 1e-05, "\x1f": "ä"}
    small["splits"] = {"val": small["splits"]["val"]}
    written = json_bytes(sealed({k: v for k, v in small.items() if k != "digest"}))
    path.write_bytes(written)
    assert read_description(damaged) == json.loads(written)
    for place in range(len(written)):
        for bit in range(8):
            changed = bytearray(written)
            changed[place] ^= 1 << bit
            path.write_bytes(changed)
            with pytest.raises(StokerError):
                read_description(damaged)


def test_blocks_of_any_size_see_the_same(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(damaged / "train" / "00001.tar", 5000, 3)
    expected = problems_of(damaged)
    for size in (1, 511, 512, 513, 4099):
        monkeypatch.setattr(image_hashes, "BLOCK", size)
        assert problems_of(damaged) == expected


class TestShards:
    def test_one_that_is_gone(self, damaged: Path) -> None:
        (damaged / "train" / "00002.tar").unlink()
        assert problems_of(damaged) == ["train/00002.tar: missing"]

    def test_a_folder_or_a_pipe_in_its_place(self, damaged: Path) -> None:
        for name in ("00000.tar", "00001.tar"):
            (damaged / "train" / name).unlink()
        (damaged / "train" / "00000.tar").mkdir()
        os.mkfifo(damaged / "train" / "00001.tar")
        assert problems_of(damaged) == [
            "train/00000.tar: not a regular file",
            "train/00001.tar: not a regular file",
        ]

    def test_one_cut_short_names_what_is_cut_off(self, damaged: Path) -> None:
        row = rows_of(damaged, "train")[9]
        path = damaged / "train" / "00001.tar"
        full = path.stat().st_size
        os.truncate(path, row["offset"] + 10)
        first, second, *more = problems_of(damaged)
        assert first == f"train/00001.tar: has {row['offset'] + 10:,} bytes, not {full:,}"
        assert second.startswith(f"train/00001.tar: image {row['key']} at byte {row['offset']} ")
        assert "cut off" in second
        assert row["path"] in second
        assert len(more) == 6

    def test_an_empty_one(self, damaged: Path) -> None:
        os.truncate(damaged / "train" / "00001.tar", 0)
        assert len(problems_of(damaged)) == 1 + 8

    def test_one_with_bytes_appended(self, damaged: Path) -> None:
        path = damaged / "val" / "00000.tar"
        full = path.stat().st_size
        path.write_bytes(path.read_bytes() + b"x")
        assert problems_of(damaged) == [f"val/00000.tar: has {full + 1:,} bytes, not {full:,}"]

    def test_two_that_changed_places(self, damaged: Path) -> None:
        one, two = damaged / "train" / "00000.tar", damaged / "train" / "00001.tar"
        one.rename(damaged / "aside")
        two.rename(one)
        (damaged / "aside").rename(two)
        assert problems_of(damaged) == [
            "train/00000.tar: holds the bytes of train/00001.tar",
            "train/00001.tar: holds the bytes of train/00000.tar",
        ]

    def test_many_images_are_counted_not_listed(self, tmp_path: Path) -> None:
        out = pack(image_folder(tmp_path / "photos"), tmp_path / "packed", workers=1)
        path = out / "train" / "00000.tar"
        path.write_bytes(bytes(path.stat().st_size))
        *lines, last = problems_of(out)
        assert len(lines) == MOST_NAMED
        assert f" {54 - MOST_NAMED} more images" in last

    def test_damage_in_two_shards_is_two_problems(self, damaged: Path) -> None:
        for name in ("train/00000.tar", "val/00001.tar"):
            flip(damaged / name, 0, 0)
        one, two = problems_of(damaged)
        assert one.startswith(f"train/00000.tar: {OUTSIDE}")
        assert two.startswith(f"val/00001.tar: {OUTSIDE}")


class TestTables:
    @pytest.mark.parametrize("name", ["train/index.parquet", "rejected.parquet"])
    @pytest.mark.parametrize("wound", ["gone", "cut", "longer"])
    def test_a_table_that_is_not_the_one(self, damaged: Path, name: str, wound: str) -> None:
        path = damaged / name
        match wound:
            case "gone":
                path.unlink()
            case "cut":
                os.truncate(path, path.stat().st_size - 1)
            case "longer":
                path.write_bytes(path.read_bytes() + b"\0")
        state = "missing" if wound == "gone" else "damaged"
        (line,) = problems_of(damaged)
        assert line.startswith(f"{name}: {state}")

    def test_behind_a_damaged_index_no_image_is_named(self, damaged: Path) -> None:
        flip(damaged / "train" / "index.parquet", 100, 0)
        flip(damaged / "train" / "00000.tar", 1000, 0)
        index, shard = problems_of(damaged)
        assert index.startswith("train/index.parquet: damaged")
        assert shard.startswith("train/00000.tar: damaged")
        assert "index" in shard


def rewritten(folder: Path, change: Callable[[dict[str, list[Any]]], object]) -> None:
    """An index that is wrong in itself, with every hash in order: a bug, or somebody's intent."""
    index = folder / "train" / "index.parquet"
    table = pq.read_table(index)
    columns = table.to_pydict()
    change(columns)
    pq.write_table(type(table).from_pydict(columns, schema=table.schema), index)
    description = json.loads((folder / "dataset.json").read_text())
    description["splits"]["train"]["index_sha256"] = sha256_file(index)
    (folder / "dataset.json").write_bytes(json_bytes(sealed(description)))


class TestIndexes:
    @pytest.mark.parametrize(
        ("column", "value"), [("offset", 1 << 40), ("offset", -1), ("length", -1), ("offset", 0)]
    )
    def test_a_row_that_points_outside(self, damaged: Path, column: str, value: int) -> None:
        rewritten(damaged, lambda columns: columns[column].__setitem__(3, value))
        (line,) = problems_of(damaged)
        assert line.startswith("train/index.parquet: row ")
        assert "points outside" in line

    def test_a_row_of_another_shard(self, damaged: Path) -> None:
        rewritten(damaged, lambda columns: columns["shard"].__setitem__(3, 2))
        (line,) = problems_of(damaged)
        assert line.startswith("train/index.parquet: its rows ")

    def test_a_row_with_another_hash(self, damaged: Path) -> None:
        rewritten(damaged, lambda columns: columns["hash"].__setitem__(3, bytes(16)))
        row = rows_of(damaged, "train")[3]
        (line,) = problems_of(damaged)
        assert line.startswith(f"train/00000.tar: image {row['key']} at byte {row['offset']}")

    def test_a_row_too_few(self, damaged: Path) -> None:
        rewritten(damaged, lambda columns: [column.pop() for column in columns.values()])
        assert len(problems_of(damaged)) == 1


class TestContradictions:
    @pytest.mark.parametrize("name", WRONG_INDEXES)
    def test_an_index(self, damaged: Path, name: str) -> None:
        WRONG_INDEXES[name](damaged)
        (problem,) = {problem.file for problem in verify(damaged).problems}
        assert problem == "train/index.parquet"

    @pytest.mark.parametrize("name", WRONG_DESCRIPTIONS)
    def test_a_description(self, damaged: Path, name: str) -> None:
        WRONG_DESCRIPTIONS[name](damaged)
        (line,) = problems_of(damaged)
        assert line.startswith("dataset.json: damaged (")

    def test_each_kind_has_a_line(self, damaged: Path) -> None:
        for name in ("a negative label", "no width", "a negative offset"):
            WRONG_INDEXES[name](damaged)
        assert len(problems_of(damaged)) == 3

    def test_labels_of_classes_that_are_missing(self, damaged: Path) -> None:
        TOO_FEW_CLASSES(damaged)
        train, val = problems_of(damaged)
        assert train.startswith("train/index.parquet: row ")
        assert val.startswith("val/index.parquet: row ")


class TestOtherFiles:
    @pytest.mark.parametrize("name", ["train/00099.tar", "test/00000.tar", "extra.parquet"])
    def test_what_a_reader_would_take_for_part_of_the_set(self, damaged: Path, name: str) -> None:
        (damaged / name).parent.mkdir(exist_ok=True)
        (damaged / name).touch()
        assert problems_of(damaged) == [f"{name}: not in dataset.json"]

    def test_what_nobody_would(self, damaged: Path) -> None:
        (damaged / "README").touch()
        (damaged / "train" / ".DS_Store").touch()
        report = verify(damaged)
        assert report.problems == []
        assert report.notes == ["not part of the set: README and 1 more"]


class TestDescriptions:
    def test_no_set_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="is not a packed set"):
            verify(tmp_path)

    def test_a_format_of_the_future(self, damaged: Path) -> None:
        path = damaged / "dataset.json"
        path.write_bytes(json_bytes(sealed(json.loads(path.read_text()) | {"format": 3})))
        with pytest.raises(StokerError, match="has format 3"):
            verify(damaged)

    @pytest.mark.parametrize(
        "text", [b"", b"[]", b"null", b'{"format": 1', b"\xff", b"[" * 100_000, b'{"format": 1}\n']
    )
    def test_one_that_is_none(self, damaged: Path, text: bytes) -> None:
        (damaged / "dataset.json").write_bytes(text)
        (problem,) = verify(damaged).problems
        assert problem.file == "dataset.json"

    @pytest.mark.parametrize(
        "wrong",
        [
            {"splits": {"../train": {"images": 0, "index_sha256": "", "shards": []}}},
            {"splits": []},
            {"splits": {"train": {"images": 1}}},
            {"splits": {"train": {"images": 0, "index_sha256": 7, "shards": []}}},
            {"splits": {"train": {"images": 5, "index_sha256": "", "shards": []}}},
        ],
    )
    def test_one_that_says_what_ours_never_say(
        self, damaged: Path, wrong: dict[str, object]
    ) -> None:
        path = damaged / "dataset.json"
        path.write_bytes(json_bytes(sealed(json.loads(path.read_text()) | wrong)))
        (problem,) = verify(damaged).problems
        assert problem.file == "dataset.json"

    def test_one_from_before_seals_is_checked_as_far_as_it_goes(self, damaged: Path) -> None:
        path = damaged / "dataset.json"
        older = json.loads(path.read_text())
        del older["digest"], older["rejected_sha256"]
        path.write_bytes(json_bytes(older))
        flip(damaged / "train" / "00000.tar", 3, 0)
        report = verify(damaged)
        assert [problem.file for problem in report.problems] == ["train/00000.tar"]
        (note,) = report.notes
        assert "dataset.json and rejected.parquet" in note


class TestSeal:
    def test_is_over_what_is_said_and_not_how(self) -> None:
        one = sealed({"b": 1, "a": [1, 2]})
        assert seal_holds(one)
        assert one["digest"] == digest_of({"a": [1, 2], "b": 1})
        assert one["digest"] == hashlib.sha256(b'{"a":[1,2],"b":1}').hexdigest()
        assert sealed(one) == one

    def test_is_over_what_will_be_read_again(self) -> None:
        one = sealed({"labels": {10: "a", 2: ("b", "c")}})
        assert json.loads(json_bytes(one)) == one
        assert seal_holds(one)

    def test_breaks_with_any_change(self) -> None:
        one = sealed({"b": 1, "rejected_sha256": "x"})
        assert not seal_holds(one | {"b": 2})
        assert not seal_holds(one | {"c": 2})
        assert not seal_holds({"digest": one["digest"]})

    def test_cannot_be_lost_by_itself(self) -> None:
        one = sealed({"b": 1, "rejected_sha256": "x"})
        del one["digest"]
        assert is_sealed(one)
        assert not seal_holds(one)


def test_progress_comes_to_all_bytes_one_call_at_a_time(sets: dict[str, Path]) -> None:
    calls: list[tuple[int, int]] = []
    report = verify(sets["raw"], threads=3, progress=lambda *counts: calls.append(counts))
    counts = [done for done, _ in calls]
    assert counts == sorted(counts)
    assert counts[-1] == report.bytes
    assert {total for _, total in calls} == {report.bytes}


def test_nothing_is_written(sets: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(sets["jpeg"], tmp_path / "packed")
    states = {name: (folder / name).stat() for name in files_of(folder)}
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert problems_of(folder) == []
    finally:
        for path in [folder, *folder.iterdir()]:
            if path.is_dir():
                path.chmod(0o755)
    for name, before in states.items():
        now = (folder / name).stat()
        assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        assert stat.S_IMODE(now.st_mode) == 0o444


def cut(path: Path) -> None:
    os.truncate(path, 700)


def swap(one: Path) -> None:
    two = one.with_name("00001.tar")
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)


def flip_index_and_shard(shard: Path) -> None:
    flip(shard, 1000, 0)
    flip(shard.with_name("index.parquet"), 100, 0)


SENTENCES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "an image": ("train/00000.tar", lambda path: flip(path, 600, 0)),
    "a header": ("train/00000.tar", lambda path: flip(path, 0, 0)),
    "many images": ("train/00000.tar", lambda path: path.write_bytes(bytes(path.stat().st_size))),
    "cut": ("train/00000.tar", cut),
    "longer": ("train/00000.tar", lambda path: path.write_bytes(path.read_bytes() + b"x")),
    "swapped": ("train/00000.tar", swap),
    "missing": ("train/00000.tar", lambda path: path.unlink()),
    "a pipe": ("train/00000.tar", lambda path: (path.unlink(), os.mkfifo(path))),
    "a shard and its index": ("train/00000.tar", flip_index_and_shard),
    "a table": ("rejected.parquet", lambda path: flip(path, 100, 0)),
    "another row": (
        "",
        lambda root: rewritten(root, lambda columns: columns["shard"].__setitem__(3, 2)),
    ),
    "rows outside": (
        "",
        lambda root: rewritten(root, lambda columns: columns["offset"].__setitem__(3, -1)),
    ),
    "a label": ("", WRONG_INDEXES["a label far out"]),
    "pixels": ("", WRONG_INDEXES["no width"]),
    "a column": ("", WRONG_INDEXES["no column"]),
    "a class": ("", WRONG_DESCRIPTIONS["a class twice"]),
    "the description": ("dataset.json", cut),
    "another shard": ("train/00099.tar", lambda path: path.touch()),
    "other files": ("", lambda root: [(root / name).touch() for name in ("README", "notes")]),
}


def test_sentences_golden(
    sets: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sentence of a report; numbers are written as N."""
    monkeypatch.setattr(module, "MOST_NAMED", 1)
    lines = []
    for number, (name, (file, damage)) in enumerate(SENTENCES.items()):
        root = shutil.copytree(sets["jpeg"], tmp_path / str(number))
        damage(root / file)
        report = verify(root)
        lines += ["", f"{name}:", *map(str, report.problems), *report.notes]
    check_golden("data_verify", [re.sub(r"\d+(,\d+)*", "N", line) for line in lines[1:]])
