"""One folder in every form: the same shards, byte for byte, through the real command."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packing import (
    Member,
    archives,
    as_folder,
    as_tar,
    as_zip,
    contents,
    files_below,
    flipped,
    jpeg,
    members,
    run_pack,
    same_set,
    shards,
)
from samples import image_folder, picture
from stoker.data.dataset import Dataset
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import ShardReport
from stoker.data.seal import SOURCE_CACHE
from stoker.errors import BadRequest

FLAGS = ("--shard-images", "16", "--max-side", "40")
KINDS = ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes, a drawing, files that cannot be used and files that are no images."""
    root = image_folder(tmp_path_factory.mktemp("source") / "photos", images=12, size=(60, 44))
    picture(0, 900, (40, 96)).save(root / "class0" / "drawing.png")
    (root / "class1" / "empty.jpg").touch()
    (root / "class1" / "text.jpg").write_text("no image")
    (root / "class2" / "notes.txt").write_text("no image by name")
    (root / "class2" / "deeper").mkdir()
    (root / "class2" / "0003.jpg").rename(root / "class2" / "deeper" / "0003.jpg")
    return root


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "packed"
    code, said = run_pack(folder, out, *FLAGS, "--workers", "1")
    assert code == 0, said
    return out


@pytest.fixture(scope="module")
def forms(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Archives of the folder, by kind."""
    place = tmp_path_factory.mktemp("archives")
    made = {kind: place / f"photos.{kind}" for kind in KINDS}
    for kind, data in archives(files_below(folder)).items():
        made[kind].write_bytes(data)
    return made


def report(packed: Path) -> Any:
    return Dataset(packed).description["report"]


@pytest.mark.parametrize("piped", [False, True], ids=["file", "piped"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_archive_gives_the_shards_of_the_folder(
    forms: dict[str, Path], whole: Path, tmp_path: Path, kind: str, piped: bool
) -> None:
    out, source = tmp_path / "out", "-" if piped else str(forms[kind])
    given = forms[kind] if piped else None
    code, said = run_pack(source, out, *FLAGS, "--workers", "1", piped=given)
    assert code == 0, said
    assert same_set(out, whole)
    assert contents(out).keys() == contents(whole).keys()
    for table in ("train/index.parquet", "val/index.parquet", "rejected.parquet"):
        assert (out / table).read_bytes() == (whole / table).read_bytes()
    assert report(out) == report(whole)


def test_a_second_time_it_is_packed_already(forms: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    for source, piped in [("-", forms["tar"]), ("-", forms["tar"]), (forms["tar.gz"], None)]:
        code, said = run_pack(source, out, *FLAGS, "--workers", "1", piped=piped)
        assert code == 0, said
    # The same images from another kind of archive are the same set.
    assert said.startswith("packed already")
    other = tmp_path / "other.tar"
    other.write_bytes(as_tar(members()))
    code, said = run_pack("-", out, *FLAGS, piped=other)
    assert (code, "another packed set" in said) == (2, True)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_tar_of_tars_with_any_workers(
    folder: Path, whole: Path, tmp_path: Path, workers: str
) -> None:
    inner = [
        (f"{place.name}.tar", as_tar(files_below(place))) for place in sorted(folder.iterdir())
    ]
    (tmp_path / "all.tar").write_bytes(as_tar(inner))
    code, said = run_pack(tmp_path / "all.tar", tmp_path / "out", *FLAGS, "--workers", workers)
    assert code == 0, said
    assert same_set(tmp_path / "out", whole)


class TestLikeTheFolder:
    """The set of an archive of a folder is that of the folder, also for odd names."""

    def same(self, root: Path, tmp_path: Path) -> None:
        made = tmp_path / "made.tar"
        subprocess.run(["tar", "-C", str(root), "-cf", str(made), "."], check=True)
        pack(root, tmp_path / "one", workers=1)
        pack(made, tmp_path / "two", workers=1)
        assert Dataset(tmp_path / "two").classes == Dataset(tmp_path / "one").classes
        assert same_set(tmp_path / "two", tmp_path / "one")

    def test_with_splits(self, tmp_path: Path) -> None:
        self.same(image_folder(tmp_path / "photos", classes=2, images=6, val=3), tmp_path)

    def test_with_names_that_are_not_plain(self, tmp_path: Path) -> None:
        classes = [b"caf\xe9", b"a\\b", "nb\u202fsp".encode(), "漢".encode(), b"plain"]
        names = [b"a\xe9", b"az", "a\u202fx".encode(), "aé".encode(), b"a\\", b"aA", b"a\x07b"]
        for label, folder in enumerate(classes):
            place = os.fsdecode(os.fsencode(tmp_path) + b"/photos/" + folder)
            Path(place).mkdir(parents=True)
            for number, name in enumerate(names):
                (Path(place) / (os.fsdecode(name) + ".jpg")).write_bytes(jpeg(label, number))
        self.same(tmp_path / "photos", tmp_path)

    def test_with_members_in_any_order_and_some_twice(self, tmp_path: Path) -> None:
        listed = members(images=8)
        stale = [(name, jpeg(4, number)) for number, (name, _) in enumerate(listed[:3])]
        folder = as_folder(tmp_path / "photos", listed)
        (tmp_path / "made.tar").write_bytes(as_tar([*stale, *listed[::-1]]))
        pack(folder, tmp_path / "one", workers=1)
        pack(tmp_path / "made.tar", tmp_path / "two", workers=1)
        assert same_set(tmp_path / "two", tmp_path / "one")
        assert {
            entry["reason"]: entry["entries"] for entry in report(tmp_path / "two")["ignored"]
        } == {"again later in the archive": 3}

    def test_more_than_one_chunk(self, tmp_path: Path) -> None:
        listed = [(f"c{n % 3}/{n:04d}.jpg", jpeg(n % 3, n, (8, 8))) for n in range(600)]
        folder = as_folder(tmp_path / "photos", listed)
        (tmp_path / "made.zip").write_bytes(as_zip(listed, piped=True))
        pack(folder, tmp_path / "one", workers=1, shard_images=100)
        pack(tmp_path / "made.zip", tmp_path / "two", workers=2, shard_images=100)
        assert same_set(tmp_path / "two", tmp_path / "one")


class TestTables:
    @pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
    @pytest.mark.parametrize("absolute", [False, True])
    def test_a_list_of_paths_gives_the_shards_of_the_folder(
        self, tmp_path: Path, kind: str, absolute: bool
    ) -> None:
        root = as_folder(tmp_path / "photos", members(images=8))
        names = [name for name, _ in members(images=8)]
        paths = [str(root / name) if absolute else name for name in names]
        place = tmp_path / "list.x" if absolute else root / "list.x"
        self.write(place.with_suffix(f".{kind}"), path=paths, label=[name[:6] for name in names])
        listed = pack(place.with_suffix(f".{kind}"), tmp_path / "listed", workers=1)
        (root / f"list.{kind}").unlink(missing_ok=True)
        assert same_set(listed, pack(root, tmp_path / "whole", workers=1))

    def write(self, file: Path, **columns: list[Any]) -> Path:
        if file.suffix == ".parquet":
            pq.write_table(pa.table(columns), file)
        else:
            with file.open("w", newline="") as text:
                writer = csv.writer(text, delimiter="\t" if file.suffix == ".tsv" else ",")
                writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
        return file

    def test_splits_rejects_and_passed_over_rows(self, tmp_path: Path) -> None:
        as_folder(tmp_path, members(images=4))
        listed = [(name, name[:6], "train") for name, _ in members(images=4)]
        listed += [("gone.jpg", "class0", "val"), ("class0/000.jpg", "class0", "val")]
        listed += [("", "class1", "train"), ("class1/000.jpg", "", "train")]
        columns = dict(
            zip(("path", "label", "split"), map(list, zip(*listed, strict=True)), strict=True)
        )
        out = pack(self.write(tmp_path / "list.csv", **columns), tmp_path / "out", workers=1)
        splits = Dataset(out).description["splits"]
        assert {name: facts["images"] for name, facts in splits.items()} == {"train": 8, "val": 1}
        rejects = pq.read_table(out / "rejected.parquet").to_pylist()
        assert sorted((row["path"], row["reason"]) for row in rejects) == [
            ("gone.jpg", "cannot read: No such file or directory"),
        ]
        assert {entry["reason"]: entry["example"] for entry in report(out)["ignored"]} == {
            "row without a label": "class1/000.jpg",
            "row without an image": "list.csv/00000010",
        }

    @pytest.mark.parametrize("column", ["binary", "struct"])
    def test_images_inside_a_table(self, tmp_path: Path, column: str) -> None:
        listed = members(classes=3, images=7)
        cells = [
            data if column == "binary" else {"bytes": data, "path": "x.jpg"} for _, data in listed
        ]
        labels = [int(name[5]) * 5 for name, _ in listed]
        file = self.write(tmp_path / "t.parquet", image=cells, label=labels)
        out = pack(file, tmp_path / "out", workers=1)
        # As numbers, not as words: 10 comes after 5.
        assert Dataset(out).classes == ["0", "5", "10"]
        assert sum(report(out)["images"].values()) == 21
        stored = {data for _, data in listed}
        split = Dataset(out).split("train")
        assert all(bytes(split.bytes_of(n)) in stored for n in range(len(split)))

    def test_the_hubs_folder_with_its_names(self, tmp_path: Path) -> None:
        features = {"label": {"names": ["zebra", "ant", "cow"], "_type": "ClassLabel"}}
        facts = {"huggingface": json.dumps({"info": {"features": features}})}
        (tmp_path / "set").mkdir()
        for name, offset in (("train-00000-of-00001", 0), ("test-00000-of-00001", 50)):
            cells = [{"bytes": jpeg(n % 2, n + offset), "path": None} for n in range(10)]
            table = pa.table({"image": cells, "label": [n % 2 for n in range(10)]})
            file = tmp_path / "set" / f"{name}.parquet"
            pq.write_table(table.replace_schema_metadata(facts), file)
        out = pack(tmp_path / "set", tmp_path / "out", workers=1)
        assert Dataset(out).classes == ["zebra", "ant", "cow"]
        assert report(out)["images"] == {"train": 10, "test": 10}
        before = shards(out)
        pack(tmp_path / "set", out, workers=1)
        assert shards(out) == before

    def test_other_columns_are_another_set(self, tmp_path: Path) -> None:
        data = [jpeg(n % 2, n) for n in range(8)]
        one, two = [n % 2 for n in range(8)], [n % 4 for n in range(8)]
        file = self.write(tmp_path / "t.parquet", image=data, one=one, two=two)
        out = pack(file, tmp_path / "out", workers=1, columns={"label": "one"})
        pack(file, out, workers=1, columns={"label": "one"})
        with pytest.raises(BadRequest, match="another packed set"):
            pack(file, out, workers=1, columns={"label": "two"})

    def test_no_such_column_ends_with_code_2_and_the_columns(self, tmp_path: Path) -> None:
        file = self.write(tmp_path / "list.csv", wo=["a.jpg"], was=["cat"])
        code, said = run_pack(file, tmp_path / "out")
        assert code == 2
        assert "wo, was" in said
        assert "Traceback" not in said
        assert not (tmp_path / "out").exists()
        code, said = run_pack(file, tmp_path / "out", "--columns", "image=wo,label=wie")
        assert (code, "'wie'" in said) == (2, True)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[: len(data) * 2 // 3],
    "empty": lambda data: b"",
    "text": lambda data: b"<html>not found</html>" * 50,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_piped_in_and_no_archive_is_one_line(
    forms: dict[str, Path], tmp_path: Path, damage: str
) -> None:
    (tmp_path / "given").write_bytes(DAMAGE[damage](forms["tar"].read_bytes()))
    code, said = run_pack("-", tmp_path / "out", *FLAGS, piped=tmp_path / "given")
    assert code in (1, 2)
    assert "Traceback" not in said
    last = said.strip().splitlines()[-1]
    assert last.startswith("stoker: standard input ")
    assert not (tmp_path / "out" / "dataset.json").exists()


def test_a_download_that_broke_off_is_finished_by_the_whole_file(
    forms: dict[str, Path], whole: Path, tmp_path: Path
) -> None:
    data = forms["zip"].read_bytes()
    (tmp_path / "given").write_bytes(data[: len(data) // 2])
    assert run_pack("-", tmp_path / "out", *FLAGS, piped=tmp_path / "given")[0] == 1
    assert run_pack("-", tmp_path / "out", *FLAGS, piped=forms["zip"])[0] == 0
    assert same_set(tmp_path / "out", whole)


class StopHere(Exception):
    pass


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "no part"])
def test_what_was_staged_and_then_damaged_is_done_again(tmp_path: Path, damage: str) -> None:
    def stop(report: ShardReport, done: int, total: int) -> None:
        raise StopHere

    source, out = tmp_path / "made.tar", tmp_path / "out"
    source.write_bytes(as_tar(members(images=20)))
    with pytest.raises(StopHere):
        pack(source, out, workers=1, progress=stop)
    staged = out / ".parts" / "stage" / "00000.tar"
    data = staged.read_bytes()
    if damage == "gone":
        staged.unlink()
    elif damage == "no part":
        (out / ".parts" / ".parts" / "stage-00000.parquet").unlink()
    else:
        staged.write_bytes(flipped(data, 2000) if damage == "flipped" else data[:2000])
    whole = contents(pack(source, tmp_path / "whole", workers=1))
    assert contents(pack(source, out, workers=1)) == whole


def test_the_writer_of_a_pipe_is_not_cut_off(forms: dict[str, Path], tmp_path: Path) -> None:
    """`curl | stoker` must not end with curl's complaint: everything is taken, also the padding."""
    listed: list[Member] = members()
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", bufsize=1 << 20) as tar:
        for name, data in listed:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    (tmp_path / "padded.tar").write_bytes(file.getvalue() + bytes(2 << 20))
    shell = 'set -o pipefail; cat "$0" | "$1" -m stoker pack - "$2" --spot-notice off'
    words = ["bash", "-c", shell, str(tmp_path / "padded.tar"), sys.executable, str(tmp_path / "o")]
    for _ in range(2):
        assert subprocess.run(words, capture_output=True).returncode == 0
    assert (tmp_path / "o" / SOURCE_CACHE).exists()
