"""The index of LitData: index.json and chunk-*.bin, which may be compressed.

Invariant: a pure reading of the index. The leaves of a sample are named by the keys that lead to
them (`image`, `meta.label`); in a tuple by their places, from 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stoker.data.sources.shards.index import MOST_COLUMNS, Wrong, count_in, field, file_name
from stoker.data.sources.shards.samples import CODECS, SampleColumn, SampleFile

LIT_TOOL = "LitData"
DEEPEST = 20


def is_litdata(index: dict[str, Any]) -> bool:
    return isinstance(index.get("chunks"), list) and isinstance(index.get("config"), dict)


def litdata_files(folder: Path, index: dict[str, Any]) -> list[SampleFile]:
    """The chunks of an index, in order. Raises Wrong where it is not one of samples."""
    config = field(index, "config", dict)
    if config.get("encryption"):
        raise Wrong("its chunks are encrypted: decrypt them with LitData first")
    if (loader := config.get("item_loader") or "PyTreeLoader") != "PyTreeLoader":
        raise Wrong(f"its chunks are for '{str(loader)[:40]}', and only those of samples are read")
    columns = columns_in(config)
    method = str(config.get("compression") or "").partition(":")[0]
    if method and method not in CODECS:
        raise Wrong(f"its chunks are compressed with '{method[:40]}', which is not read")
    files = []
    for chunk in field(index, "chunks", list):
        path = folder / file_name(chunk, "filename")
        files.append(SampleFile(path, None, count_in(chunk, "chunk_size"), columns))
    return files


def columns_in(config: dict[str, Any]) -> tuple[SampleColumn, ...]:
    formats = field(config, "data_format", list)
    if len(formats) > MOST_COLUMNS or not all(isinstance(text, str) for text in formats):
        raise Wrong("'data_format' is not a list of names")
    try:
        spec = json.loads(field(config, "data_spec", str))
        names = list(leaves(spec[1], "", 0)) if isinstance(spec, list) and len(spec) == 2 else []
    except (ValueError, RecursionError) as error:
        raise Wrong("'data_spec' is not readable") from error
    if len(names) != len(formats) or len(set(names)) != len(names):
        raise Wrong("'data_spec' and 'data_format' have different lengths")
    return tuple(map(SampleColumn, names, formats))


def leaves(spec: Any, prefix: str, depth: int) -> Iterator[str]:
    """The names of the leaves below a record of the tree. Raises ValueError for another form."""
    if not isinstance(spec, dict) or depth > DEEPEST:
        raise ValueError("not a tree of samples")
    children = spec.get("children_spec")
    if not isinstance(children, list):
        raise ValueError("not a tree of samples")
    if spec.get("type") is None:
        yield prefix.removesuffix(".") or "0"
        return
    context = json.loads(spec.get("context") or "null")
    keys = context if isinstance(context, list) else range(len(children))
    if len(keys) != len(children):
        raise ValueError("not a tree of samples")
    for key, child in zip(keys, children, strict=True):
        yield from leaves(child, f"{prefix}{key}.", depth + 1)
