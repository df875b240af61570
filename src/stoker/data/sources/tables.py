"""Images named or held in a table: CSV or Parquet lists of paths or URLs, Parquet with bytes.

Invariants: a column is chosen by its name or by the user, never by its values. Rows are read in
batches. Class numbers follow the table's own list of classes where it has one (data sets from the
Hugging Face hub do); without one, names are sorted, and numbers are sorted by value.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.data.images.decode_any import MAX_BYTES
from stoker.data.sources.item import Item, one_reason
from stoker.data.sources.labels import refuse_nested
from stoker.data.sources.layout import Ignored, split_of
from stoker.errors import BadRequest, StokerError
from stoker.text import shown

KNOWN = {
    "image": (
        *("image", "path", "file", "filename", "file_name", "filepath", "file_path", "image_path"),
        *("url", "image_url", "link", "img", "bytes", "jpg", "png", "webp"),
    ),
    "label": ("label", "class", "category", "class_name", "target", "cls", "labels", "fine_label"),
    "split": ("split", "set", "subset", "partition"),
}
"""Common names of the columns by role, the most likely first."""
ROWS = 8
"""Rows held at once. In a dictionary-encoded column a few bytes can expand to many large values."""
FIRST_ROWS = 20_000
"""Rows that show whether labels are classes."""
BOMB_BYTES, BOMB_RATIO = 64 << 20, 100
"""A column that is larger than this and compressed by more than this is refused."""
FIELD_BYTES = 1 << 16
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Table:
    """The files of a table, and the columns for images, labels and splits."""

    files: tuple[Path, ...]
    columns: dict[str, str]
    """Column names by role: image, label and, where there is one, split."""
    holds_bytes: bool
    classes: tuple[str, ...]
    """Class names in the table's own order; empty where it has none."""


def table_files(source: Path) -> tuple[Path, ...]:
    """The file itself, or the Parquet files of a folder of nothing else; empty for no table."""
    if source.is_file():
        return (source,) if source.suffix.lower() in TABLE_SUFFIXES else ()
    if not source.is_dir():
        return ()
    inside = [path for path in source.iterdir() if not path.name.startswith((".", "README"))]
    if [path.name for path in inside] == ["data"] and inside[0].is_dir():
        inside = list(inside[0].iterdir())
    whole = all(path.suffix.lower() == ".parquet" and path.is_file() for path in inside)
    return tuple(sorted(inside)) if whole else ()


def open_table(files: tuple[Path, ...], chosen: dict[str, str]) -> Table:
    """Find the columns; `chosen` names some by role. Raises BadRequest where one is missing."""
    first = files[0]
    with reading(first):
        if first.suffix.lower() == ".parquet":
            schema = pq.ParquetFile(first).schema_arrow
            names, classes = schema.names, own_classes(schema)
        else:
            names, schema, classes = next(csv_rows(first), []), None, {}
    columns = {}
    for role, usual in KNOWN.items():
        matches = (name for known in usual for name in names if name.lower() == known)
        name = chosen.get(role) or next(matches, "")
        if not name and role == "split":
            continue
        if name not in names:
            raise BadRequest(
                f"{shown(str(first))} has no column for the {role}"
                f"{f' called {chosen[role]!r}' if role in chosen else ''}: it has "
                f"{', '.join(map(shown, names)) or 'none'}; name it with --columns {role}=NAME"
            )
        columns[role] = name
    if schema is not None and schema.names.count(columns["label"]) == 1:
        refuse_nested(schema.field(columns["label"]).type, columns["label"], str(first))
    holds_bytes = schema is not None and bytes_inside(schema, columns["image"], first)
    return Table(files, columns, holds_bytes, classes.get(columns["label"], ()))


def bytes_inside(schema: pa.Schema, column: str, file: Path) -> bool:
    """Whether a column holds image bytes, not names. Raises BadRequest for another type."""
    kinds = [field.type for field in schema if field.name == column]
    kind = kinds[0]
    if pa.types.is_struct(kind):
        kind = next((field.type for field in kind if field.name == "bytes"), kind)
    inside: bool = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    named = pa.types.is_string(kinds[0]) or pa.types.is_large_string(kinds[0])
    if len(kinds) > 1 or not (inside or named):
        raise BadRequest(
            f"column {column!r} of {shown(str(file))} holds neither images nor names of images: "
            f"{kinds[0] if len(kinds) == 1 else 'there are several columns of that name'}"
        )
    return inside


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn the errors of a file that cannot be read into a StokerError with its name."""
    try:
        yield
    except (OSError, pa.ArrowException, ValueError, csv.Error) as error:
        raise StokerError(f"{shown(str(file))} cannot be read: {one_reason(error)}") from error


def refuse_bomb(opened: pq.ParquetFile, file: Path) -> None:
    """Raise StokerError where a column of a row group is far larger than its compressed size."""
    metadata = opened.metadata
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(column)
            packed, plain = chunk.total_compressed_size, chunk.total_uncompressed_size
            if plain > BOMB_BYTES and plain > BOMB_RATIO * packed:
                raise StokerError(
                    f"{shown(str(file))} unpacks to more than {BOMB_RATIO} times its size: "
                    "refused, because it may be an attack"
                )


def own_classes(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Class names by column, as the Hugging Face hub writes them into a Parquet file."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {
            column: tuple(str(name) for name in feature["names"])
            for column, feature in features.items()
            if isinstance(feature, dict)
            and feature.get("names")
            # Names that occur twice do not identify classes.
            and len(set(map(str, feature["names"]))) == len(feature["names"])
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def rows(table: Table, ignored: Ignored) -> Iterator[Item]:
    """Yield every row that has an image, a label and a split; add the others to `ignored`."""
    for file in table.files:
        file_split = split_of(file.stem.split("-")[0]) if len(table.files) > 1 else None
        for number, (image, label, *split) in enumerate(records(file, table)):
            name, data, reason = image_cell(image, table.holds_bytes, f"{file.name}/{number:08d}")
            class_name = label_name(label, table.classes)
            named = bool(split) and split[0] is not None
            split_name = split_of(str(split[0])) if named else file_split or "train"
            if reason and not table.holds_bytes:
                ignored.append((shown(name), "row without an image"))
            elif class_name is None:
                ignored.append((shown(name), "row without a label"))
            elif split_name is None:
                ignored.append((shown(name), "not a split: expected train, val or test"))
            else:
                yield Item(name, data, reason, class_name, split_name)


def first_labels(table: Table) -> Iterator[Any]:
    """The labels of the first rows, as they stand in the table."""
    alone = replace(table, columns={"label": table.columns["label"]})
    labels = (label for file in table.files for (label,) in records(file, alone))
    return islice(labels, FIRST_ROWS)


def records(file: Path, table: Table) -> Iterator[list[Any]]:
    """Yield image, label and, where there is such a column, split of each row of a file."""
    names = [table.columns[role] for role in KNOWN if role in table.columns]
    with reading(file):
        if file.suffix.lower() != ".parquet":
            lines = csv_rows(file)
            header = next(lines)
            positions = [header.index(name) for name in names]
            for line in lines:
                yield [line[at] if at < len(line) else None for at in positions]
            return
        opened = pq.ParquetFile(file)
        refuse_bomb(opened, file)
        if missing := [name for name in names if name not in opened.schema_arrow.names]:
            raise StokerError(f"{shown(str(file))} has no column {missing[0]!r} as the others have")
        for batch in opened.iter_batches(batch_size=ROWS, columns=names):
            for row in batch.to_pylist():
                yield [row[name] for name in names]


def csv_rows(file: Path) -> Iterator[list[str]]:
    csv.field_size_limit(FIELD_BYTES)
    delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        yield from csv.reader(text, strict=True, delimiter=delimiter)


def image_cell(
    image: Any, holds_bytes: bool, default_name: str
) -> tuple[str, bytes | None, str | None]:
    """Name, bytes and reason for a failure of one image cell."""
    if not holds_bytes:
        return (str(image), None, None) if image else (default_name, None, "empty cell")
    name, data = default_name, image
    if isinstance(image, dict):
        name, data = f"{name}-{image['path']}" if image.get("path") else name, image["bytes"]
    if data is None:
        return name, None, "empty cell"
    if len(data) > MAX_BYTES:
        return name, None, f"file larger than {MAX_BYTES >> 20} MiB"
    return name, data, None


def label_name(label: Any, classes: tuple[str, ...]) -> str | None:
    """The name of a row's class; None where it has no class."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if label is None or label == "" or isinstance(label, float | list | dict):
        return None
    if classes and isinstance(label, int):
        return classes[label] if 0 <= label < len(classes) else None
    return str(label)
