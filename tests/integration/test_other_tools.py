"""What Stoker packs belongs to the user: other tools read it without Stoker."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from samples import image_folder
from stoker.data.packing.pack import pack
from stoker.data.packing.shard import Storage

SUFFIX = {"jpeg": "jpg", "raw": "npy"}
CLASSES = 3
IMAGES = {"train": 60, "val": 12}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sets")
    folder = image_folder(root / "photos", classes=CLASSES, images=20, val=4)
    return {
        codec: pack(folder, root / codec, storage=Storage(codec), workers=1, shard_images=16)
        for codec in SUFFIX
    }


@pytest.fixture(params=list(SUFFIX))
def codec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def shards(packed: Path, split: str = "train") -> list[str]:
    return sorted(str(path) for path in (packed / split).glob("*.tar"))


def index(packed: Path, split: str = "train") -> dict[str, dict[str, Any]]:
    rows = pq.read_table(packed / split / "index.parquet").to_pylist()
    return {row["key"]: row for row in rows}


class TestShards:
    def test_webdataset_reads_images_and_labels(self, sets: dict[str, Path], codec: str) -> None:
        wds = pytest.importorskip("webdataset")
        rows = index(sets[codec])
        reader = wds.WebDataset(shards(sets[codec]), shardshuffle=False).decode("rgb8")
        seen = 0
        for sample in reader:
            row, image = rows[sample["__key__"]], sample[SUFFIX[codec]]
            assert (image.dtype, image.shape) == (np.uint8, (row["height"], row["width"], 3))
            assert sample["cls"] == row["label"]
            seen += 1
        assert seen == IMAGES["train"]

    def test_webdataset_reads_the_stored_bytes(self, sets: dict[str, Path], codec: str) -> None:
        wds = pytest.importorskip("webdataset")
        rows = index(sets[codec])
        for sample in wds.WebDataset(shards(sets[codec]), shardshuffle=False):
            digest = hashlib.sha256(sample[SUFFIX[codec]]).digest()[:16]
            assert digest == rows[sample["__key__"]]["hash"]

    def test_webdataset_makes_batches_of_a_shuffled_epoch(self, sets: dict[str, Path]) -> None:
        wds = pytest.importorskip("webdataset")
        reader = wds.WebDataset(shards(sets["jpeg"]), shardshuffle=10, seed=1).shuffle(50)
        pairs = reader.decode("torchrgb").to_tuple("jpg", "cls").batched(16)
        labels = [label for _, some in pairs for label in np.asarray(some).tolist()]
        assert Counter(labels) == dict.fromkeys(range(CLASSES), 20)

    def test_tarfile_finds_members_where_the_index_says(
        self, sets: dict[str, Path], codec: str
    ) -> None:
        rows = index(sets[codec])
        for name in shards(sets[codec]):
            with tarfile.open(name) as tar:
                for member in tar:
                    key, suffix = member.name.split(".")
                    assert member.isreg()
                    if suffix == "cls":
                        stored = tar.extractfile(member)
                        assert stored is not None
                        assert int(stored.read()) == rows[key]["label"]
                    else:
                        assert suffix == SUFFIX[codec]
                        place = (rows[key]["offset"], rows[key]["length"])
                        assert (member.offset_data, member.size) == place

    @pytest.mark.skipif(shutil.which("tar") is None, reason="no tar command here")
    def test_tar_lists_and_unpacks(self, sets: dict[str, Path], codec: str, tmp_path: Path) -> None:
        first = shards(sets[codec])[0]
        listed = subprocess.run(["tar", "-tf", first], check=True, capture_output=True, text=True)
        keys = [key for key, row in index(sets[codec]).items() if row["shard"] == 0]
        expected = [f"{key}.{suffix}" for key in keys for suffix in (SUFFIX[codec], "cls")]
        assert (listed.stdout.split(), listed.stderr) == (expected, "")
        subprocess.run(["tar", "-xf", first, "-C", str(tmp_path)], check=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(expected)

    def test_numpy_reads_raw_members(self, sets: dict[str, Path]) -> None:
        rows = index(sets["raw"])
        with tarfile.open(shards(sets["raw"])[0]) as tar:
            for member in tar:
                if member.name.endswith(".npy"):
                    row = rows[member.name.removesuffix(".npy")]
                    stored = tar.extractfile(member)
                    assert stored is not None
                    array = np.load(io.BytesIO(stored.read()), allow_pickle=False)
                    assert array.shape == (row["height"], row["width"], 3)


class TestTables:
    def test_pyarrow(self, sets: dict[str, Path]) -> None:
        for split, count in IMAGES.items():
            table = pq.read_table(sets["jpeg"] / split / "index.parquet")
            assert table.num_rows == count
            assert table.column("key").null_count == 0

    def test_pandas_counts_and_joins(self, sets: dict[str, Path]) -> None:
        pd = pytest.importorskip("pandas")
        train = pd.read_parquet(sets["jpeg"] / "train" / "index.parquet")
        assert train["label"].value_counts().to_dict() == dict.fromkeys(range(CLASSES), 20)
        names = pd.read_json(sets["jpeg"] / "dataset.json", typ="series")["classes"]
        labels = pd.DataFrame({"label": range(CLASSES), "name": names})
        joined = train.merge(labels, on="label")
        assert len(joined) == IMAGES["train"]
        assert (joined["path"].str.split("/").str[1] == joined["name"]).all()

    def test_duckdb_counts_and_joins(self, sets: dict[str, Path]) -> None:
        duckdb = pytest.importorskip("duckdb")
        with duckdb.connect() as database:
            counted = database.execute(
                "SELECT label, count(*) FROM read_parquet(?) GROUP BY label ORDER BY label",
                [str(sets["jpeg"] / "*" / "index.parquet")],
            ).fetchall()
            assert counted == [(label, 24) for label in range(CLASSES)]
            named = database.execute(
                "WITH names AS (SELECT unnest(classes) AS name, "
                "  generate_subscripts(classes, 1) - 1 AS label FROM read_json(?)) "
                "SELECT count(*), count(*) FILTER (path LIKE '%' || name || '/%') "
                "FROM read_parquet(?) JOIN names USING (label)",
                [
                    str(sets["jpeg"] / "dataset.json"),
                    str(sets["jpeg"] / "train" / "index.parquet"),
                ],
            ).fetchone()
            assert named == (IMAGES["train"], IMAGES["train"])

    def test_the_same_images_have_the_same_pixels_in_both_sets(self, sets: dict[str, Path]) -> None:
        duckdb = pytest.importorskip("duckdb")
        with duckdb.connect() as database:
            same = database.execute(
                "SELECT count(*) FROM read_parquet(?) a JOIN read_parquet(?) b "
                "USING (path) WHERE a.pixels = b.pixels AND a.label = b.label",
                [str(sets[codec] / "train" / "index.parquet") for codec in SUFFIX],
            ).fetchone()
            assert same == (IMAGES["train"],)
