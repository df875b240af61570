"""Sets of MosaicML Streaming and LitData: those that the real tools wrote, and damaged ones."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from packing import as_folder, contents
from shard_sets import KEPT, LIT, LOSSLESS, MDS, NAMES, SAMPLES, jpeg, main, pixels, png
from stoker.data.dataset import Dataset
from stoker.data.images.decode_any import inspect
from stoker.data.packing.pack import pack
from stoker.data.sources.item import Item
from stoker.data.sources.shards.sample_set import SampleSet, sample_set
from stoker.data.sources.shards.samples import MOST_SAMPLE_BYTES
from stoker.errors import BadRequest, StokerError

FOLDER = Path(__file__).parents[4] / "data" / "shards"
FAR = 40
"""How far a pixel of such a small JPEG may be from its picture."""


def items(found: SampleSet | None) -> list[Item]:
    assert found is not None
    ignored: list[tuple[str, str]] = []
    listed = list(found.items(ignored))
    assert not ignored
    return listed


def check(folder: Path, name: str) -> None:
    """Every sample of a set is there, with its picture and its class."""
    listed = items(sample_set(folder, {}))
    assert len(listed) == SAMPLES
    for number, item in enumerate(listed):
        assert item.data is not None, item.reason
        found = inspect(item.data).pixels.astype(int)
        wrong = np.abs(found - pixels(number % 2, number // 2)).max()
        assert wrong <= (0 if name in LOSSLESS else FAR)
        assert item.label in (str(number % 2), NAMES[number % 2])
        assert item.split == "train"


@pytest.mark.parametrize("name", KEPT)
def test_what_the_tools_wrote_is_read(name: str) -> None:
    check(FOLDER / name, name)


@pytest.mark.skipif(
    not (importlib.util.find_spec("streaming") and importlib.util.find_spec("litdata")),
    reason="no mosaicml-streaming and litdata: pip install mosaicml-streaming litdata",
)
def test_every_encoding_that_the_tools_write_is_read(tmp_path: Path) -> None:
    names = tuple(name for name in (*MDS, *LIT) if not name.endswith("pickled"))
    main(tmp_path, names)
    for name in names:
        check(tmp_path / name, name)


@pytest.mark.parametrize("name", ["mds-zstd", "lit-zstd"])
def test_a_set_is_packed_as_the_same_files_are(name: str, tmp_path: Path) -> None:
    out = pack(FOLDER / name, tmp_path / "out", workers=1, val_share=0.25)
    assert Dataset(out).classes == (list(NAMES) if name == "mds-zstd" else ["0", "1"])
    counts = Dataset(out).description["report"]["images"]
    assert counts == {"train": 6, "val": 2}
    before = contents(out)
    pack(FOLDER / name, out, workers=1, val_share=0.25)
    assert contents(out) == before


def test_each_split_has_a_folder(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        shutil.copytree(FOLDER / "mds-imagenet", tmp_path / "set" / split)
    out = pack(tmp_path / "set", tmp_path / "out", workers=1)
    assert Dataset(out).description["report"]["images"] == {"train": 8, "val": 8}


def test_a_folder_of_images_with_an_index_of_its_own_is_one_of_images(tmp_path: Path) -> None:
    folder = as_folder(
        tmp_path / "photos", [(f"c{n % 2}/{n}.jpg", jpeg(n % 2, n)) for n in range(8)]
    )
    (folder / "index.json").write_text('{"pages": [1, 2]}')
    assert sample_set(folder, {}) is None
    assert Dataset(pack(folder, tmp_path / "out", workers=1)).classes == ["c0", "c1"]


def mds(folder: Path, columns: dict[str, str], *values: dict[str, bytes]) -> Path:
    """A set by hand: one shard, every value with its size."""
    blocks = []
    for value in values:
        sizes = [len(value[name]).to_bytes(4, "little") for name in columns]
        blocks.append(b"".join([*sizes, *(value[name] for name in columns)]))
    offsets = np.cumsum([4 * (len(blocks) + 2), *map(len, blocks)]).astype("<u4")
    folder.mkdir(parents=True)
    data = len(blocks).to_bytes(4, "little") + offsets.tobytes() + b"".join(blocks)
    (folder / "shard.00000.mds").write_bytes(data)
    shard = {
        "column_names": list(columns),
        "column_encodings": list(columns.values()),
        "column_sizes": [None] * len(columns),
        "compression": None,
        "format": "mds",
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}},
        "samples": len(blocks),
        "version": 2,
        "zip_data": None,
    }
    (folder / "index.json").write_text(json.dumps({"shards": [shard], "version": 2}))
    return folder


SEVERAL = {"thumb": "png", "photo": "jpeg", "species": "str", "place": "str"}


class TestColumns:
    def found(self, tmp_path: Path, columns: dict[str, str], **chosen: str) -> dict[str, str]:
        folder = mds(tmp_path / "set", columns, dict.fromkeys(columns, b""))
        found = sample_set(folder, chosen)
        assert found is not None
        return found.columns

    def test_the_user_decides(self, tmp_path: Path) -> None:
        found = self.found(tmp_path, SEVERAL, image="photo", label="species")
        assert found == {"image": "photo", "label": "species"}

    def test_what_cannot_be_guessed_is_asked_for_with_the_columns(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match=r"photo \(jpeg\).*--columns image=NAME"):
            self.found(tmp_path, SEVERAL)

    @pytest.mark.parametrize(
        ("columns", "image", "label"),
        [
            ({"i": "int", "x": "jpeg", "y": "int"}, "x", "y"),
            ({"jpg": "bytes", "cls": "str"}, "jpg", "cls"),
            ({"picture": "pil", "kind": "uint8"}, "picture", "kind"),
            ({"0": "jpeg", "1": "int"}, "0", "1"),
            ({"image": "str", "data": "jpeg", "label": "int", "id": "int"}, "data", "label"),
        ],
    )
    def test_names_and_encodings_tell(
        self, tmp_path: Path, columns: dict[str, str], image: str, label: str
    ) -> None:
        assert self.found(tmp_path, columns) == {"image": image, "label": label}

    def test_a_column_of_splits(self, tmp_path: Path) -> None:
        columns = {"image": "jpeg", "label": "str", "split": "str"}
        values = [
            {"image": jpeg(0, n), "label": b"a", "split": split}
            for n, split in enumerate((b"train", b"valid", b"", b"other"))
        ]
        found = sample_set(mds(tmp_path / "set", columns, *values), {})
        assert found is not None
        ignored: list[tuple[str, str]] = []
        assert [item.split for item in found.items(ignored)] == ["train", "val", "train"]
        assert [reason for _, reason in ignored] == ["not a split: expected train, val or test"]

    @pytest.mark.parametrize("role", ["image", "label"])
    def test_pickles_are_refused_by_name(self, tmp_path: Path, role: str) -> None:
        columns = {"image": "jpeg", "label": "int", role: "pkl"}
        with pytest.raises(BadRequest, match=f"'{role}'.*is pickled"):
            self.found(tmp_path, columns)

    def test_a_pickle_in_another_column_is_left_alone(self, tmp_path: Path) -> None:
        columns = {"image": "jpeg", "label": "str", "extra": "pkl"}
        value = {"image": jpeg(0, 0), "label": b"a", "extra": b"cos\nsystem\n(S'false'\ntR."}
        (item,) = items(sample_set(mds(tmp_path / "set", columns, value), {}))
        assert item.data == jpeg(0, 0)

    def test_a_wrong_role_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match=r"'label' .* is 'jpeg', which is no label"):
            self.found(tmp_path, {"image": "jpeg", "label": "jpeg"}, label="label")


class TestLabels:
    def test_measured_numbers_are_no_classes(self, tmp_path: Path) -> None:
        values = [{"image": jpeg(0, n), "label": np.float64(n + 0.37).tobytes()} for n in range(6)]
        folder = mds(tmp_path / "set", {"image": "jpeg", "label": "float64"}, *values)
        with pytest.raises(BadRequest, match="measured numbers"):
            pack(folder, tmp_path / "out", workers=1)

    def test_a_sample_without_a_label_is_listed(self, tmp_path: Path) -> None:
        values = [{"image": jpeg(0, n), "label": b"ab"[n % 2 : n % 2 + 1]} for n in range(6)]
        values.append({"image": jpeg(0, 9), "label": b""})
        folder = mds(tmp_path / "set", {"image": "jpeg", "label": "str"}, *values)
        out = pack(folder, tmp_path / "out", workers=1)
        (entry,) = Dataset(out).description["report"]["ignored"]
        assert entry == {
            "reason": "sample without a label",
            "entries": 1,
            "example": "shard.00000.mds/00000006",
        }

    def test_a_bad_image_is_rejected_alone(self, tmp_path: Path) -> None:
        values = [{"image": png(0, n), "label": b"ab"[n % 2 : n % 2 + 1]} for n in range(8)]
        values[3] = {"image": b"no image", "label": b"a"}
        folder = mds(tmp_path / "set", {"image": "bytes", "label": "str"}, *values)
        out = pack(folder, tmp_path / "out", workers=1)
        (entry,) = Dataset(out).description["report"]["rejected"]
        assert (entry["images"], entry["example"]) == (1, "shard.00000.mds/00000003")


def edited(tmp_path: Path, name: str, change: Callable[[Any], None]) -> Path:
    """A kept set with a changed index."""
    folder = tmp_path / "set"
    shutil.copytree(FOLDER / name, folder)
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def put(*path: Any) -> Callable[[Any], None]:
    """A change that puts the last word at the place that the others name."""

    def change(index: Any) -> None:
        *way, last, value = path
        for step in way:
            index = index[step]
        index[last] = value

    return change


WRONG = {
    "a path": ("mds-imagenet", put("shards", 0, "raw_data", "basename", "../secret")),
    "an absolute path": ("mds-imagenet", put("shards", 0, "raw_data", "basename", "/etc/passwd")),
    "no name": ("mds-imagenet", put("shards", 0, "raw_data", "basename", 7)),
    "another format": ("mds-imagenet", put("shards", 0, "format", "csv")),
    "another version": ("mds-imagenet", put("shards", 0, "version", 9)),
    "a negative count": ("mds-imagenet", put("shards", 0, "samples", -1)),
    "a huge count": ("mds-imagenet", put("shards", 0, "samples", 10**12)),
    "a count that is true": ("mds-imagenet", put("shards", 0, "samples", True)),
    "fewer sizes": ("mds-imagenet", put("shards", 0, "column_sizes", [8])),
    "a huge size": ("mds-imagenet", put("shards", 0, "column_sizes", [8, None, 10**20])),
    "names of numbers": ("mds-imagenet", put("shards", 0, "column_names", [1, 2, 3])),
    "a shard of nothing": ("mds-imagenet", put("shards", 1, None)),
    "unknown compression": ("mds-zstd", put("shards", 0, "compression", "rot13")),
    "a packed path": ("mds-zstd", put("shards", 0, "zip_data", "basename", "a/b")),
    "no packed file": ("mds-zstd", put("shards", 0, "zip_data", None)),
    "a chunk's path": ("lit-jpeg", put("chunks", 0, "filename", "../../x")),
    "a chunk's count": ("lit-jpeg", put("chunks", 0, "chunk_size", 10**9)),
    "no data format": ("lit-jpeg", put("config", "data_format", None)),
    "a tree of nothing": ("lit-jpeg", put("config", "data_spec", "[1, 2]")),
    "a tree without end": ("lit-jpeg", put("config", "data_spec", "[" * 100_000)),
    "another loader": ("lit-jpeg", put("config", "item_loader", "TokensLoader")),
    "encryption": ("lit-jpeg", put("config", "encryption", {"algorithm": "fernet"})),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_index_is_one_sentence(case: str, tmp_path: Path) -> None:
    name, change = WRONG[case]
    folder = edited(tmp_path, name, change)
    with pytest.raises(BadRequest, match=r"index\.json cannot be used: "):
        sample_set(folder, {})


@pytest.mark.parametrize("text", ["", "{", "[" * 200_000, "[]", "null", '{"shards": []}', "\xff"])
def test_an_index_that_is_none_is_one_sentence(text: str, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    shutil.copytree(FOLDER / "mds-imagenet", folder)
    (folder / "index.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(BadRequest, match="not the index of a set"):
        sample_set(folder, {})


SHARDS = {
    "mds-imagenet": "shard.00000.mds",
    "mds-zstd": "shard.00000.mds.zstd",
    "lit-zstd": "chunk-0-0.bin",
    "lit-zstd-sample": "chunk-0-0.bin",
}


@pytest.mark.parametrize("name", SHARDS)
def test_damaged_shards_are_a_sentence_in_the_memory_of_an_image(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    shutil.copytree(FOLDER / name, folder)
    path = folder / SHARDS[name]
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    damaged = [whole[:end] for end in range(0, len(whole), 97)]
    for at in [*range(48), *rng.integers(0, len(whole), 40)]:
        damaged += [whole[:at] + bytes([value]) + whole[at + 1 :] for value in (0, 0xFF)]
    tracemalloc.start()
    for data in damaged:
        path.write_bytes(data)
        try:
            found = sample_set(folder, {})
            assert found is not None
            list(found.items([]))
        except StokerError as error:
            assert len(str(error).splitlines()) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * MOST_SAMPLE_BYTES


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    shutil.copytree(FOLDER / "mds-imagenet", folder)
    (folder / "shard.00001.mds").unlink()
    with pytest.raises(StokerError, match=r"shard\.00001\.mds is missing"):
        pack(folder, tmp_path / "out", workers=1)


def test_a_compressed_shard_that_unpacks_without_end_is_refused(tmp_path: Path) -> None:
    size = 1100 << 20
    folder = edited(tmp_path, "mds-zstd", put("shards", 0, "samples", 2))
    head = b"".join(n.to_bytes(4, "little") for n in (2, 16, size - 8, size))
    with pa.output_stream(folder / "shard.00000.mds.zstd", compression="zstd") as packed:
        packed.write(head)
        for _ in range(1100):
            packed.write(bytes(1 << 20))
    found = sample_set(folder, {})
    assert found is not None
    # A sample of a gigabyte is not read, and what is behind it cannot be reached.
    ignored: list[tuple[str, str]] = []
    with pytest.raises(StokerError, match="it may be an attack"):
        list(found.items(ignored))
    assert "larger than" in ignored[0][1]
