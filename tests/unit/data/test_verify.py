"""One flipped bit anywhere in a set is found, and the right file and image are named."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from samples import image_folder
from stoker.commit import json_bytes, sha256_file
from stoker.data import image_hashes as rehash
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import Storage
from stoker.data.seal import SOURCE_CACHE, WALK_CACHE, digest_of, is_sealed, seal_holds, sealed
from stoker.data.verify import MOST_NAMED, Problem, read_description, verify
from stoker.errors import BadRequest, StokerError

FLIPS = 200
OUTSIDE = "damaged outside the images: a header, a label or padding of the tar"


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


def said(folder: Path) -> list[str]:
    return [str(problem) for problem in verify(folder).problems]


def flip(path: Path, place: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ (1 << bit)]))


@pytest.mark.parametrize("codec", ["jpeg", "raw"])
def test_a_whole_set_holds(sets: dict[str, Path], codec: str) -> None:
    verdict = verify(sets[codec])
    assert (verdict.problems, verdict.notes) == ([], [])
    assert (verdict.images, verdict.shards) == (39, 6)
    names = [name for name in files_of(sets[codec]) if name != "dataset.json"]
    assert verdict.bytes == sum((sets[codec] / name).stat().st_size for name in names)


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
            words = [
                f"image {row['key']} at byte {row['offset']} is damaged (from {row['path']})"
                for row in hit
            ]
            assert [problem.words for problem in problems] == (words or [OUTSIDE])
            images_hit, else_hit = images_hit + len(hit), else_hit + (not hit)
    assert images_hit > FLIPS // 8
    assert else_hit > FLIPS // 20
    assert said(folder) == []


def test_every_single_bit_of_the_description_counts(damaged: Path) -> None:
    path = damaged / "dataset.json"
    small = json.loads(path.read_text())
    # Numbers and letters that have two spellings in JSON.
    small["report"] = {"share": 1e-05, "\x1f": "ä"}
    small["splits"] = {"val": small["splits"]["val"]}
    written = json_bytes(sealed({k: v for k, v in small.items() if k != "digest"}))
    path.write_bytes(written)
    assert read_description(damaged) is not None
    for place in range(len(written)):
        for bit in range(8):
            wounded = bytearray(written)
            wounded[place] ^= 1 << bit
            path.write_bytes(wounded)
            assert read_description(damaged) is None, (place, bit)


def test_blocks_of_any_size_see_the_same(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(damaged / "train" / "00001.tar", 5000, 3)
    expected = said(damaged)
    for size in (1, 511, 512, 513, 4099):
        monkeypatch.setattr(rehash, "BLOCK", size)
        assert said(damaged) == expected


class TestShards:
    def test_one_that_is_gone(self, damaged: Path) -> None:
        (damaged / "train" / "00002.tar").unlink()
        assert said(damaged) == ["train/00002.tar: missing"]

    def test_a_folder_or_a_pipe_in_its_place(self, damaged: Path) -> None:
        for name in ("00000.tar", "00001.tar"):
            (damaged / "train" / name).unlink()
        (damaged / "train" / "00000.tar").mkdir()
        os.mkfifo(damaged / "train" / "00001.tar")
        assert said(damaged) == [
            "train/00000.tar: not a regular file",
            "train/00001.tar: not a regular file",
        ]

    def test_one_cut_short_names_what_is_cut_off(self, damaged: Path) -> None:
        row = rows_of(damaged, "train")[9]
        path = damaged / "train" / "00001.tar"
        full = path.stat().st_size
        os.truncate(path, row["offset"] + 10)
        first, second, *more = said(damaged)
        assert first == f"train/00001.tar: has {row['offset'] + 10:,} bytes, not {full:,}"
        assert second == (
            f"train/00001.tar: image {row['key']} at byte {row['offset']} is cut off "
            f"(from {row['path']})"
        )
        assert len(more) == 6

    def test_an_empty_one(self, damaged: Path) -> None:
        os.truncate(damaged / "train" / "00001.tar", 0)
        assert len(said(damaged)) == 1 + 8

    def test_one_with_bytes_appended(self, damaged: Path) -> None:
        path = damaged / "val" / "00000.tar"
        full = path.stat().st_size
        path.write_bytes(path.read_bytes() + b"x")
        assert said(damaged) == [f"val/00000.tar: has {full + 1:,} bytes, not {full:,}"]

    def test_two_that_changed_places(self, damaged: Path) -> None:
        one, two = damaged / "train" / "00000.tar", damaged / "train" / "00001.tar"
        one.rename(damaged / "aside")
        two.rename(one)
        (damaged / "aside").rename(two)
        assert said(damaged) == [
            "train/00000.tar: holds the bytes of train/00001.tar",
            "train/00001.tar: holds the bytes of train/00000.tar",
        ]

    def test_many_images_are_counted_not_listed(self, tmp_path: Path) -> None:
        out = pack(image_folder(tmp_path / "photos"), tmp_path / "packed", workers=1)
        path = out / "train" / "00000.tar"
        path.write_bytes(bytes(path.stat().st_size))
        *lines, last = said(out)
        assert len(lines) == MOST_NAMED
        assert last == f"train/00000.tar: and {54 - MOST_NAMED} more images of it"

    def test_damage_in_two_shards_is_two_problems(self, damaged: Path) -> None:
        for name in ("train/00000.tar", "val/00001.tar"):
            flip(damaged / name, 0, 0)
        assert said(damaged) == [f"train/00000.tar: {OUTSIDE}", f"val/00001.tar: {OUTSIDE}"]


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
        words = "missing" if wound == "gone" else "damaged: its hash is not the one in dataset.json"
        assert said(damaged) == [f"{name}: {words}"]

    def test_behind_a_damaged_index_no_image_is_named(self, damaged: Path) -> None:
        flip(damaged / "train" / "index.parquet", 100, 0)
        flip(damaged / "train" / "00000.tar", 1000, 0)
        index, shard = said(damaged)
        assert index.startswith("train/index.parquet: damaged")
        assert shard.startswith("train/00000.tar: damaged; which images are hit cannot be said")


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
        (line,) = said(damaged)
        assert line.startswith("train/index.parquet: row ")
        assert "points outside its place in its shard" in line

    def test_a_row_of_another_shard(self, damaged: Path) -> None:
        rewritten(damaged, lambda columns: columns["shard"].__setitem__(3, 2))
        (line,) = said(damaged)
        assert line == "train/index.parquet: its rows are not the images of the shards in order"

    def test_a_row_with_another_hash(self, damaged: Path) -> None:
        rewritten(damaged, lambda columns: columns["hash"].__setitem__(3, bytes(16)))
        row = rows_of(damaged, "train")[3]
        (line,) = said(damaged)
        assert line.startswith(f"train/00000.tar: image {row['key']} at byte {row['offset']}")

    def test_a_row_too_few(self, damaged: Path) -> None:
        rewritten(damaged, lambda columns: [column.pop() for column in columns.values()])
        assert len(said(damaged)) == 1


class TestStrangers:
    @pytest.mark.parametrize("name", ["train/00099.tar", "test/00000.tar", "extra.parquet"])
    def test_what_a_reader_would_take_for_part_of_the_set(self, damaged: Path, name: str) -> None:
        (damaged / name).parent.mkdir(exist_ok=True)
        (damaged / name).touch()
        assert said(damaged) == [f"{name}: not in dataset.json"]

    def test_what_nobody_would(self, damaged: Path) -> None:
        (damaged / "README").touch()
        (damaged / "train" / ".DS_Store").touch()
        verdict = verify(damaged)
        assert verdict.problems == []
        assert verdict.notes == ["not part of the set: README and 1 more"]


class TestDescriptions:
    def test_no_set_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="is not a packed set"):
            verify(tmp_path)

    def test_a_format_of_the_future(self, damaged: Path) -> None:
        path = damaged / "dataset.json"
        path.write_bytes(json_bytes(sealed(json.loads(path.read_text()) | {"format": 2})))
        with pytest.raises(StokerError, match="has format 2"):
            verify(damaged)

    @pytest.mark.parametrize(
        "text", [b"", b"[]", b"null", b'{"format": 1', b"\xff", b"[" * 100_000, b'{"format": 1}\n']
    )
    def test_one_that_is_none(self, damaged: Path, text: bytes) -> None:
        (damaged / "dataset.json").write_bytes(text)
        words = "damaged; nothing else can be judged without it"
        assert verify(damaged).problems == [Problem("dataset.json", words)]

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
        verdict = verify(damaged)
        assert [problem.file for problem in verdict.problems] == ["train/00000.tar"]
        assert verdict.notes == [
            "dataset.json and rejected.parquet were packed without hashes of their own: not checked"
        ]


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
    told: list[tuple[int, int]] = []
    verdict = verify(sets["raw"], threads=3, progress=lambda *news: told.append(news))
    counts = [done for done, _ in told]
    assert counts == sorted(counts)
    assert counts[-1] == verdict.bytes
    assert {total for _, total in told} == {verdict.bytes}


def test_nothing_is_written(sets: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(sets["jpeg"], tmp_path / "packed")
    states = {name: (folder / name).stat() for name in files_of(folder)}
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert said(folder) == []
    finally:
        for path in [folder, *folder.iterdir()]:
            if path.is_dir():
                path.chmod(0o755)
    for name, before in states.items():
        now = (folder / name).stat()
        assert (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
        assert stat.S_IMODE(now.st_mode) == 0o444
