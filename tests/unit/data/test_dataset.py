"""A packed set opens whole or says what is wrong with it, and is never written."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from golden import check_golden
from samples import image_folder
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.data.seal import sealed
from stoker.data.verify import verify
from stoker.errors import BadRequest, StokerError
from wrong_sets import TOO_FEW_CLASSES, WRONG_DESCRIPTIONS, WRONG_INDEXES, value, with_index


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


@pytest.fixture(params=["jpeg", "raw"])
def packed(sets: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    return sets[request.param]


@pytest.fixture
def damaged(sets: dict[str, Path], tmp_path: Path) -> Path:
    """A copy to be damaged."""
    return shutil.copytree(sets["jpeg"], tmp_path / "packed")


def describe(folder: Path, **changes: Any) -> None:
    path = folder / "dataset.json"
    path.write_text(json.dumps(sealed(json.loads(path.read_text()) | changes)))


LOAD = """
import sys
import tracemalloc
from integration.loading import endless, loader_of
next(loader_of(sys.argv[1], 4).batches(endless(30, 4, 1)))
sys.exit("pandas" in sys.modules)
"""


class TestOpening:
    @pytest.mark.parametrize("kind", ["sparse", "pipe", "folder"])
    def test_a_description_that_can_be_none_is_refused_unread(
        self, damaged: Path, kind: str
    ) -> None:
        file = damaged / "dataset.json"
        if kind == "sparse":
            os.truncate(file, 900 << 20)
        else:
            file.unlink()
            os.mkfifo(file) if kind == "pipe" else file.mkdir()
        reason = "too large" if kind == "sparse" else "not a plain file"
        tracemalloc.start()
        try:
            for use in (Dataset, verify):
                held = tracemalloc.get_traced_memory()[0]
                if use is Dataset:
                    with pytest.raises(StokerError, match=reason):
                        use(damaged)
                else:
                    assert reason in use(damaged).problems[0].text
                assert tracemalloc.get_traced_memory()[1] - held < 20 << 20
        finally:
            tracemalloc.stop()

    def test_does_not_import_pandas_where_that_is_installed(
        self, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "pandas.py").write_text("__version__ = '3.0.0'")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        assert subprocess.run([sys.executable, "-c", LOAD, str(packed)]).returncode == 0

    def test_says_what_is_in_the_set(self, packed: Path) -> None:
        dataset = Dataset(packed)
        assert dataset.classes == ["class0", "class1", "class2"]
        assert (dataset.images("train"), dataset.images("val"), dataset.images("test")) == (
            30,
            9,
            0,
        )
        assert len(dataset.split("train")) == 30
        assert dataset.split("train").shard_sizes.sum() == 30
        assert dataset.codec in ("jpeg", "raw")
        assert len(dataset.fingerprint) == 16
        assert Dataset.is_packed(packed)

    def test_accuracy_is_measured_on_val(self, packed: Path) -> None:
        assert Dataset(packed).eval_split == "val"

    @pytest.mark.parametrize(("split", "expected"), [("test", "test"), (None, None)])
    def test_or_on_test_or_on_nothing(
        self, tmp_path: Path, split: str | None, expected: str | None
    ) -> None:
        folder = image_folder(tmp_path / "photos", images=3, val=2)
        if split:
            (folder / "val").rename(folder / split)
        else:
            shutil.rmtree(folder / "val")
        out = pack(folder, tmp_path / "packed", workers=1, val_share=0)
        assert Dataset(out).eval_split == expected

    def test_a_split_that_is_not_there_is_answered_with_those_that_are(self, packed: Path) -> None:
        with pytest.raises(BadRequest, match=r"'tset'.*train, val"):
            Dataset(packed).split("tset")


class TestReading:
    def test_bytes_are_those_that_tar_reads(self, packed: Path) -> None:
        dataset = Dataset(packed)
        suffix = {"jpeg": "jpg", "raw": "npy"}[dataset.codec]
        for name in ("train", "val"):
            split, stored = dataset.split(name), {}
            for shard in sorted((packed / name).glob("*.tar")):
                with tarfile.open(shard) as tar:
                    stored |= {item.name: tar.extractfile(item).read() for item in tar}
            table = pq.read_table(packed / name / "index.parquet")
            for sample, key in enumerate(table.column("key").to_pylist()):
                assert split.bytes_of(sample) == stored[f"{key}.{suffix}"]
                assert split.labels[sample] == int(stored[f"{key}.cls"])

    def test_the_origin_names_shard_byte_and_path(self, packed: Path) -> None:
        split = Dataset(packed).split("train")
        row = pq.read_table(packed / "train" / "index.parquet").slice(11, 1).to_pylist()[0]
        assert split.origin_of(11) == (
            f"{packed}/train/{row['shard']:05d}.tar at byte {row['offset']} (from {row['path']})"
        )

    def test_files_are_the_same_after_reading(self, packed: Path) -> None:
        files = [path for path in sorted(packed.rglob("*")) if path.is_file()]
        before = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
        split = Dataset(packed).split("train")
        for sample in range(len(split)):
            split.bytes_of(sample)[0] ^= 255  # a copy is the caller's own
        del split
        assert [path for path in sorted(packed.rglob("*")) if path.is_file()] == files
        assert [hashlib.sha256(path.read_bytes()).hexdigest() for path in files] == before

    def test_a_shard_cut_short_is_named(self, damaged: Path) -> None:
        shard = damaged / "train" / "00001.tar"
        shard.write_bytes(shard.read_bytes()[:-512])
        split = Dataset(damaged).split("train")
        with pytest.raises(StokerError, match=r"train/00001\.tar.*pack again"):
            for sample in range(len(split)):
                split.bytes_of(sample)

    @pytest.mark.parametrize(
        "wound", [lambda path: path.unlink(), lambda path: path.write_text("")]
    )
    def test_a_shard_that_is_gone_is_named(
        self, damaged: Path, wound: Callable[[Path], object]
    ) -> None:
        wound(damaged / "train" / "00002.tar")
        split = Dataset(damaged).split("train")
        with pytest.raises(StokerError, match=r"train/00002\.tar"):
            split.bytes_of(len(split) - 7)


class TestRefusing:
    def test_a_folder_without_description_is_answered_with_the_next_command(
        self, damaged: Path
    ) -> None:
        (damaged / "dataset.json").unlink()
        assert not Dataset.is_packed(damaged)
        with pytest.raises(BadRequest, match=f"stoker pack {damaged}"):
            Dataset(damaged)

    def test_a_folder_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="nowhere"):
            Dataset(tmp_path / "nowhere")

    def test_a_file_in_place_of_a_folder_is_named(self, damaged: Path) -> None:
        with pytest.raises(BadRequest, match=r"rejected\.parquet"):
            Dataset(damaged / "rejected.parquet")

    @pytest.mark.parametrize("text", [b"", b'{"format": 1, "cla', b"\xff\xfe", b"[]", b"null"])
    def test_a_damaged_description_is_named_with_the_next_command(
        self, damaged: Path, text: bytes
    ) -> None:
        (damaged / "dataset.json").write_bytes(text)
        with pytest.raises(StokerError, match=r"dataset\.json.*pack"):
            Dataset(damaged)

    def test_a_format_of_the_future_is_named_with_what_to_do(self, damaged: Path) -> None:
        describe(damaged, format=3)
        with pytest.raises(BadRequest, match=r"has format 3, .* reads formats 1 to 2: use a newer"):
            Dataset(damaged)

    def test_a_description_without_a_format_is_damaged(self, damaged: Path) -> None:
        describe(damaged, format=None)
        with pytest.raises(StokerError, match=r"dataset\.json is damaged .*pack"):
            Dataset(damaged)

    def test_a_description_that_was_changed_is_named_with_the_next_command(
        self, damaged: Path
    ) -> None:
        path = damaged / "dataset.json"
        path.write_text(path.read_text().replace('"class1"', '"klass1"', 1))
        with pytest.raises(StokerError, match=r"dataset\.json is damaged.*stoker pack"):
            Dataset(damaged)

    def test_a_description_from_before_seals_opens(self, damaged: Path) -> None:
        path = damaged / "dataset.json"
        older = json.loads(path.read_text())
        del older["digest"], older["rejected_sha256"]
        path.write_text(json.dumps(older))
        assert len(Dataset(damaged).split("train")) == 30

    @pytest.mark.parametrize("wound", ["gone", "cut", "of another set"])
    def test_a_damaged_index_is_named(self, damaged: Path, wound: str) -> None:
        index = damaged / "train" / "index.parquet"
        match wound:
            case "gone":
                index.unlink()
            case "cut":
                index.write_bytes(index.read_bytes()[:-20])
            case "of another set":
                shutil.copy(damaged / "val" / "index.parquet", index)
        with pytest.raises(StokerError, match=r"train/index\.parquet.*pack again"):
            Dataset(damaged).split("train")

    @pytest.mark.parametrize("name", ["../../secret.tar", "/etc/passwd", "00000.tar/x", ""])
    def test_a_shard_name_that_leads_elsewhere(self, damaged: Path, name: str) -> None:
        splits = Dataset(damaged).description["splits"]
        splits["train"]["shards"][0]["name"] = name
        describe(damaged, splits=splits)
        with pytest.raises(
            StokerError, match=rf"dataset\.json is damaged .*{re.escape(repr(name))}"
        ):
            Dataset(damaged).split("train")


def read_all(folder: Path) -> None:
    split = Dataset(folder).split("train")
    for sample in range(len(split)):
        split.bytes_of(sample)


class TestRefusingWhatContradictsItself:
    """Every hash is right: a program with a fault wrote it, or somebody on purpose."""

    @pytest.mark.parametrize("name", WRONG_INDEXES)
    def test_an_index(self, damaged: Path, name: str) -> None:
        WRONG_INDEXES[name](damaged)
        with pytest.raises(StokerError, match=r"train/index\.parquet is damaged \(.+stoker pack"):
            Dataset(damaged).split("train")

    @pytest.mark.parametrize("name", WRONG_DESCRIPTIONS)
    def test_a_description(self, damaged: Path, name: str) -> None:
        WRONG_DESCRIPTIONS[name](damaged)
        with pytest.raises(StokerError, match=r"dataset\.json is damaged \(.+stoker pack") as error:
            Dataset(damaged)
        assert str(error.value).isprintable()

    def test_labels_of_classes_that_are_missing(self, damaged: Path) -> None:
        TOO_FEW_CLASSES(damaged)
        with pytest.raises(StokerError, match="label 2, and the set has 2 classes"):
            Dataset(damaged).split("train")

    @pytest.mark.parametrize("width", [1, 47, 49, 300])
    def test_pixels_without_their_bytes(
        self, sets: dict[str, Path], tmp_path: Path, width: int
    ) -> None:
        root = shutil.copytree(sets["raw"], tmp_path / "raw")
        value("width", width)(root)
        with pytest.raises(StokerError, match=rf"row 3 has 5888 bytes for {width} x 40 pixels"):
            Dataset(root).split("train")

    def test_the_index_for_evaluation_too(self, damaged: Path) -> None:
        table = pq.read_table(damaged / "val" / "index.parquet")
        labels = pa.array([7] * len(table), pa.int32())
        place = table.column_names.index("label")
        with_index(damaged, table.set_column(place, "label", labels), "val")
        with pytest.raises(StokerError, match=r"val/index\.parquet.*label 7"):
            Dataset(damaged).split("val")


def test_an_index_without_hashes_opens(damaged: Path) -> None:
    with_index(damaged, pq.read_table(damaged / "train" / "index.parquet").drop_columns(["hash"]))
    assert len(Dataset(damaged).split("train")) == 30


REFUSALS: dict[str, Callable[[Path], object]] = {
    "no description": lambda root: (root / "dataset.json").unlink(),
    "half a description": lambda root: os.truncate(root / "dataset.json", 20),
    "a list": lambda root: (root / "dataset.json").write_text("[]"),
    "no format": lambda root: describe(root, format=None),
    "newer": lambda root: describe(root, format=3),
    "changed": lambda root: (root / "dataset.json").write_text('{"format": 1, "digest": ""}'),
    "no index": lambda root: (root / "train" / "index.parquet").unlink(),
    "other index": lambda root: shutil.copy(
        root / "val" / "index.parquet", root / "train" / "index.parquet"
    ),
    "other columns": lambda root: with_index(
        root, pq.read_table(root / "train" / "index.parquet").drop_columns(["width"])
    ),
    "other rows": lambda root: with_index(root, pq.read_table(root / "val" / "index.parquet")),
    "no shard": lambda root: (root / "train" / "00000.tar").unlink(),
    "a cut shard": lambda root: os.truncate(root / "train" / "00000.tar", 600),
    "a row outside": WRONG_INDEXES["an offset behind the shard"],
    "a label outside": WRONG_INDEXES["a label far out"],
    "no pixels": WRONG_INDEXES["no width"],
    "rows in disorder": WRONG_INDEXES["another shard"],
    "columns in disorder": WRONG_INDEXES["columns in another order"],
    "another type": WRONG_INDEXES["labels as text"],
    **{name: WRONG_DESCRIPTIONS[name] for name in sorted(WRONG_DESCRIPTIONS)},
}


def test_refusals_golden(sets: dict[str, Path], tmp_path: Path) -> None:
    """Every sentence of a refusal; the folder is written as SET and numbers as N."""
    lines = []
    for number, (name, damage) in enumerate(REFUSALS.items()):
        root = shutil.copytree(sets["jpeg"], tmp_path / str(number))
        damage(root)
        with pytest.raises(StokerError) as refusal:
            read_all(root)
        lines.append(f"{name}: {refusal.value}".replace(str(root), "SET"))
    with pytest.raises(BadRequest) as unknown:
        Dataset(sets["jpeg"]).split("tset")
    lines.append(f"unknown split: {unknown.value}".replace(str(sets["jpeg"]), "SET"))
    check_golden("data_dataset", [re.sub(r"\d+(,\d+)*", "N", line) for line in lines])
