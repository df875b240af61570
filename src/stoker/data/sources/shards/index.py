"""The index of a set in shards: which files it has, and which columns.

Invariants: an index is data of bounded size. A name in it is the name of a file beside it, never a
path. What is missing or of another type raises Wrong, with what it is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from stoker.data.sources.shards.samples import MOST_SAMPLES
from stoker.host.plain_file import open_plain

INDEX = "index.json"
MOST_BYTES = 64 << 20
MOST_COLUMNS = 1000
Kind = TypeVar("Kind")


class Wrong(Exception):
    """What is wrong with an index."""


def read_index(folder: Path) -> dict[str, Any] | None:
    """The index of a folder; None where it has none that is JSON. Raises Wrong where it is too
    large."""
    try:
        with open_plain(folder / INDEX) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BYTES:
                raise Wrong(f"it has more than {MOST_BYTES >> 20} MiB")
            index = json.loads(file.read(size))
    except (OSError, ValueError, RecursionError):
        return None
    return index if isinstance(index, dict) else None


def field(record: Any, name: str, kind: type[Kind]) -> Kind:
    """A field of a record. Raises Wrong where it is missing or of another type."""
    value = record.get(name) if isinstance(record, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        words = {int: "number", str: "text", list: "list", dict: "record"}
        raise Wrong(f"'{name}' is not a {words.get(kind, kind.__name__)}")
    return value


def count_in(record: Any, name: str) -> int:
    count = field(record, name, int)
    if not 0 <= count <= MOST_SAMPLES:
        raise Wrong(f"'{name}' is {count:,}")
    return count


def file_name(record: Any, name: str) -> str:
    """The name of a file beside the index. Raises Wrong for any path."""
    text = field(record, name, str)
    if not text or "/" in text or "\\" in text or "\0" in text or text in (".", ".."):
        raise Wrong(f"'{name}' is not the plain name of a file")
    return text
