"""Images named or held in a table: CSV or Parquet lists of paths or URLs, Parquet with bytes.

Invariants: columns are found by name, or named by the user, never guessed from values. Rows are
read a batch at a time. Class numbers follow the table's own list of classes where it carries one
(data sets from the Hugging Face hub do), else the sorted names, numbers by value.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.data.images.decode_any import MAX_BYTES
from stoker.data.sources.item import Item, one_reason
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
"""What columns are usually called, the likelier names first."""
ROWS = 8
"""Rows of images held at once: a few bytes in a dictionary can stand for many large values."""
BOMB_BYTES, BOMB_RATIO = 64 << 20, 100
"""A column that is larger and was compressed by more is an attack."""
FIELD_BYTES = 1 << 16
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Table:
    """Where the images, labels and splits stand in one or several files."""

    files: tuple[Path, ...]
    columns: dict[str, str]
    """Column by role: image, label and perhaps split."""
    holds_bytes: bool
    classes: tuple[str, ...]
    """Names in the table's own order, if it has one."""


def table_files(source: Path) -> tuple[Path, ...]:
    """The files of a table: itself, or the Parquet files of a folder that holds nothing else."""
    if source.is_file():
        return (source,) if source.suffix.lower() in TABLE_SUFFIXES else ()
    if not source.is_dir():
        return ()
    inside = [path for path in source.iterdir() if not path.name.startswith((".", "README"))]
    if [path.name for path in inside] == ["data"] and inside[0].is_dir():
        inside = list(inside[0].iterdir())
    if inside and all(path.suffix.lower() == ".parquet" and path.is_file() for path in inside):
        return tuple(sorted(inside))
    return ()


def open_table(files: tuple[Path, ...], chosen: dict[str, str]) -> Table:
    """Find the columns; `chosen` are those that the user named."""
    first = files[0]
    if first.suffix.lower() == ".parquet":
        schema = parquet(first).schema_arrow
        names, classes = schema.names, own_classes(schema)
    else:
        names, schema, classes = header_of(first), None, {}
    columns = {}
    for role, usual in KNOWN.items():
        name = chosen.get(role) or next((n for u in usual for n in names if n.lower() == u), "")
        if not name and role == "split":
            continue
        if name not in names:
            raise BadRequest(
                f"{shown(str(first))} has no column for the {role}"
                f"{f' called {chosen[role]!r}' if role in chosen else ''}: it has "
                f"{', '.join(map(shown, names)) or 'none'}; say --columns {role}=NAME"
            )
        columns[role] = name
    holds_bytes = schema is not None and bytes_inside(schema, columns["image"], first)
    return Table(files, columns, holds_bytes, classes.get(columns["label"], ()))


def bytes_inside(schema: pa.Schema, column: str, file: Path) -> bool:
    """Whether a column holds images themselves; else it names them."""
    kinds = [field.type for field in schema if field.name == column]
    kind = kinds[0]
    if pa.types.is_struct(kind):
        kind = next((field.type for field in kind if field.name == "bytes"), kind)
    inside: bool = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    named = pa.types.is_string(kinds[0]) or pa.types.is_large_string(kinds[0])
    if len(kinds) > 1 or not (inside or named):
        raise BadRequest(
            f"column {column!r} of {shown(str(file))} holds neither images nor names of images: "
            f"{kinds[0] if len(kinds) == 1 else 'there are several'}"
        )
    return inside


def parquet(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise StokerError(f"{shown(str(file))} cannot be read: {one_reason(error)}") from error


def refuse_bomb(opened: pq.ParquetFile, file: Path) -> None:
    """Parquet is read a group of rows at a time: none may be absurdly larger than the file."""
    facts = opened.metadata
    for group in range(facts.num_row_groups):
        for column in range(facts.num_columns):
            chunk = facts.row_group(group).column(column)
            packed, plain = chunk.total_compressed_size, chunk.total_uncompressed_size
            if plain > BOMB_BYTES and plain > BOMB_RATIO * packed:
                raise StokerError(
                    f"{shown(str(file))} unpacks to more than {BOMB_RATIO} times its size: "
                    "given up, nothing in it is trusted"
                )


def own_classes(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Names of classes by column, as the Hugging Face hub writes them into a Parquet file."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {
            column: tuple(str(name) for name in feature["names"])
            for column, feature in features.items()
            if isinstance(feature, dict)
            and feature.get("names")
            # Names that are there twice do not tell classes apart.
            and len(set(map(str, feature["names"]))) == len(feature["names"])
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def rows(table: Table, ignored: Ignored) -> Iterator[Item]:
    """Every row with a label: name (a path or URL where the image is not in the table), bytes,
    label, split."""
    for file in table.files:
        own_split = split_of(file.stem.split("-")[0]) if len(table.files) > 1 else None
        for number, (image, label, split) in enumerate(records(file, table)):
            name, data, reason = told(image, table.holds_bytes, f"{file.name}/{number:08d}")
            class_name = label_name(label, table.classes)
            known = own_split or "train" if split is None else split_of(str(split))
            if reason and not table.holds_bytes:
                ignored.append((shown(name), "row without an image"))
            elif class_name is None:
                ignored.append((shown(name), "row without a label"))
            elif known is None:
                ignored.append((shown(name), "not a split: expected train, val or test"))
            else:
                yield Item(name, data, reason, class_name, known)


def records(file: Path, table: Table) -> Iterator[tuple[Any, Any, Any]]:
    """Image, label and split of each row of a file."""
    names = [table.columns[role] for role in ("image", "label")]
    names += [table.columns["split"]] if "split" in table.columns else []
    try:
        if file.suffix.lower() != ".parquet":
            lines = csv_rows(file)
            header = next(lines)
            places = [header.index(name) for name in names]
            for line in lines:
                values = [line[place] if place < len(line) else None for place in places]
                yield values[0], values[1], values[2] if len(values) > 2 else None
            return
        opened = parquet(file)
        refuse_bomb(opened, file)
        if missing := [name for name in names if name not in opened.schema_arrow.names]:
            raise StokerError(f"{shown(str(file))} has no column {missing[0]!r} as the others have")
        for batch in opened.iter_batches(batch_size=ROWS, columns=names):
            for row in batch.to_pylist():
                values = [row[name] for name in names]
                yield values[0], values[1], values[2] if len(values) > 2 else None
    except (OSError, pa.ArrowException, ValueError, csv.Error) as error:
        raise StokerError(f"{shown(str(file))} cannot be read: {one_reason(error)}") from error


def header_of(file: Path) -> list[str]:
    try:
        return next(csv_rows(file), [])
    except (OSError, csv.Error) as error:
        raise StokerError(f"{shown(str(file))} cannot be read: {one_reason(error)}") from error


def csv_rows(file: Path) -> Iterator[list[str]]:
    csv.field_size_limit(FIELD_BYTES)
    mark = "\t" if file.suffix.lower() == ".tsv" else ","
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as text:
        yield from csv.reader(text, strict=True, delimiter=mark)


def told(image: Any, holds_bytes: bool, place: str) -> tuple[str, bytes | None, str | None]:
    """Name, bytes and trouble of one image cell."""
    if not holds_bytes:
        return (str(image), None, None) if image else (place, None, "empty cell")
    name, data = place, image
    if isinstance(image, dict):
        name, data = f"{place}-{image['path']}" if image.get("path") else place, image["bytes"]
    if data is None:
        return name, None, "empty cell"
    if len(data) > MAX_BYTES:
        return name, None, f"file larger than {MAX_BYTES >> 20} MiB"
    return name, data, None


def label_name(label: Any, classes: tuple[str, ...]) -> str | None:
    """A row's class by name; None where it has none."""
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if label is None or label == "" or isinstance(label, float | list | dict):
        return None
    if classes and isinstance(label, int):
        return classes[label] if 0 <= label < len(classes) else None
    return str(label)
