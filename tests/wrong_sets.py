"""Packed sets whose hashes are all right, and whose tables or description are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.commit import json_bytes, sha256_file
from stoker.data.seal import sealed

Change = Callable[[Path], object]
ROW = 3
"""The row of the training index that is changed; it is not the last of its shard."""


def describe(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a description and seal it again."""
    file = root / "dataset.json"
    description = json.loads(file.read_text())
    change(description)
    file.write_bytes(json_bytes(sealed(description)))


def with_index(root: Path, table: pa.Table, split: str = "train") -> None:
    """Replace an index, with its hash in the description."""
    file = root / split / "index.parquet"
    pq.write_table(table, file)
    digest = sha256_file(file)
    describe(root, lambda facts: facts["splits"][split].update(index_sha256=digest))


def index_of(root: Path) -> pa.Table:
    return pq.read_table(root / "train" / "index.parquet")


def value(column: str, wrong: Any, row: int = ROW) -> Change:
    """Replace one value of the training index."""

    def change(root: Path) -> None:
        table = index_of(root)
        columns = table.to_pydict()
        columns[column][row] = wrong(columns[column][row]) if callable(wrong) else wrong
        with_index(root, pa.Table.from_pydict(columns, schema=table.schema))

    return change


def column(name: str, kind: pa.DataType) -> Change:
    """Store a column of the training index as another type."""

    def change(root: Path) -> None:
        table = index_of(root)
        values = pa.array([str(item) for item in table.column(name).to_pylist()])
        numbers = table.column(name).cast(kind) if pa.types.is_integer(kind) else values
        with_index(root, table.set_column(table.column_names.index(name), name, numbers))

    return change


def in_order(names: Callable[[list[str]], list[str]]) -> Change:
    """Reorder, drop or repeat columns of the training index."""

    def change(root: Path) -> None:
        table = index_of(root)
        columns = [table.column(name) for name in names(table.column_names)]
        with_index(root, pa.table(columns, names=names(table.column_names)))

    return change


def fact(*path: Any, wrong: Any) -> Change:
    """Replace one value of the description."""

    def change(root: Path) -> None:
        def replace(description: dict[str, Any]) -> None:
            place: Any = description
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = wrong(place[path[-1]]) if callable(wrong) else wrong

        describe(root, replace)

    return change


WRONG_INDEXES: dict[str, Change] = {
    "a label behind the last class": value("label", 3),
    "a negative label": value("label", -1),
    "a label far out": value("label", 2**31 - 1),
    "a negative offset": value("offset", -1),
    "an offset behind the shard": value("offset", 1 << 40),
    "an offset that overflows": value("offset", 2**63 - 1),
    "a negative length": value("length", -1),
    "no length": value("length", 0),
    "a length behind the shard": value("length", 2**31 - 1, row=7),
    "a length into the next image": value("length", lambda length: length + 2048),
    "an offset into the image before": value("offset", lambda offset: offset - 2048),
    "no width": value("width", 0),
    "a negative height": value("height", -40),
    "more pixels than any image": value("width", 2**31 - 1),
    "another shard": value("shard", 2),
    "a shard that is not there": value("shard", 99),
    "a negative shard": value("shard", -1),
    "a null": value("label", None),
    "no hash in a row": value("hash", None),
    "no column": in_order(lambda names: [name for name in names if name != "label"]),
    "no path": in_order(lambda names: [name for name in names if name != "path"]),
    "columns in another order": in_order(
        lambda names: ["offset", "shard", *(n for n in names if n not in ("offset", "shard"))]
    ),
    "a column twice": in_order(lambda names: [*names, "label"]),
    "labels as text": column("label", pa.string()),
    "offsets of 32 bits": column("offset", pa.int32()),
    "hashes as text": column("hash", pa.string()),
    "a row too few": lambda root: with_index(root, index_of(root).slice(1)),
    "no rows": lambda root: with_index(root, index_of(root).slice(0, 0)),
}
SHARD = ("splits", "train", "shards", 0)
WRONG_DESCRIPTIONS: dict[str, Change] = {
    "no classes": fact("classes", wrong=[]),
    "classes that are a number": fact("classes", wrong=3),
    "a class twice": fact("classes", wrong=["class0", "class1", "class0"]),
    "a class without a name": fact("classes", wrong=["class0", "", "class2"]),
    "a class that is a number": fact("classes", wrong=["class0", 1, "class2"]),
    "a codec of another kind": fact("storage", "codec", wrong="\x1b[31mgif"),
    "no storage": fact("storage", wrong=None),
    "no fingerprint": fact("fingerprint", wrong=None),
    "no splits": fact("splits", wrong=[]),
    "a split of another name": fact("splits", wrong=lambda splits: {**splits, "../x": {}}),
    "a split without shards": fact("splits", "train", wrong={}),
    "shards that are numbers": fact("splits", "train", "shards", wrong=[1]),
    "a shard without a hash": fact(*SHARD, "sha256", wrong=None),
    "a shard called otherwise": fact(*SHARD, "name", wrong="../00000.tar"),
    "a negative count": fact(*SHARD, "images", wrong=-8),
    "a count that is no number": fact(*SHARD, "images", wrong=True),
    "bytes beyond all disks": fact(*SHARD, "bytes", wrong=10**30),
    "a shard twice": fact(*SHARD, "name", wrong="00001.tar"),
    "counts that do not add up": fact("splits", "train", "images", wrong=31),
    "an index without a hash": fact("splits", "train", "index_sha256", wrong=None),
}
TOO_FEW_CLASSES = fact("classes", wrong=["class0", "class1"])
