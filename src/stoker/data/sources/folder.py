"""A folder of labelled images as a list: which file belongs to which split and class.

Invariants: one walk, no stat per file, nothing read. The list is sorted, so that the same folder
gives the same list. Everything left out is named with its reason. Links to folders are not
followed: a walk always ends. What a walk found is kept beside the packed set and used again while
none of the folders has changed, which asks for one stat a folder and no listing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.commit import publish, temporary
from stoker.data.sources.layout import (
    Found,
    Ignored,
    Listing,
    arrange,
    is_hidden,
    is_image,
    split_of,
)
from stoker.errors import BadRequest
from stoker.text import shown

SETTLED_S = 3.0
"""A folder changed so shortly before a walk may change again within the same tick of its clock."""
WALK = pa.schema([("split", pa.string()), ("label", pa.binary()), ("path", pa.binary())])


@dataclass
class Walk:
    """What a walk found, and when each folder it listed was last changed."""

    found: Found[str] = field(default_factory=dict)
    ignored: Ignored = field(default_factory=list)
    folders: dict[str, int] = field(default_factory=dict)


def list_folder(root: str, val_share: float = 0.1, seen: Walk | None = None) -> Listing[str]:
    """List ROOT/CLASS/images or ROOT/{train,val,test}/CLASS/images."""
    if not os.path.isdir(root):
        raise BadRequest(f"no folder at {shown(root)}")
    seen = seen or walk(root)
    if not any(seen.found.get("train", {}).values()):
        raise BadRequest(
            f"no training images below {shown(root)}: expected {shown(root)}/CLASS/*.jpg "
            f"or {shown(root)}/train/CLASS/*.jpg"
        )
    return arrange(root, seen.found, seen.ignored, val_share)


def walk(root: str) -> Walk:
    """List everything below a folder, once."""
    seen = Walk()
    top = sorted(folders(root, "", seen))
    if not any(split_of(name) == "train" for name in top):
        seen.found["train"] = {name: images_below(root, name, seen) for name in top}
        return seen
    for name in top:
        split = split_of(name)
        if split is None:
            seen.ignored.append((shown(name), "not a split: expected train, val or test"))
            continue
        for label in sorted(folders(root, name, seen)):
            inside = images_below(root, f"{name}/{label}", seen)
            seen.found.setdefault(split, {}).setdefault(label, []).extend(inside)
    return seen


def entries(root: str, below: str, seen: Walk) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder that are no one's housekeeping."""
    try:
        folder = os.path.join(root, below)
        seen.folders[below] = os.stat(folder).st_mtime_ns
        with os.scandir(folder) as listing:
            for entry in listing:
                path = f"{below}/{entry.name}".lstrip("/")
                if is_hidden(entry.name):
                    seen.ignored.append((shown(path), "hidden"))
                else:
                    yield entry
    except OSError as error:
        seen.ignored.append((shown(below), f"cannot list: {error.strerror}"))


def folders(root: str, below: str, seen: Walk) -> list[str]:
    """Names of the folders directly inside one, noting what else lies there."""
    names = []
    for entry in entries(root, below, seen):
        path = shown(f"{below}/{entry.name}".lstrip("/"))
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        elif entry.is_symlink() and os.path.isdir(entry.path):
            seen.ignored.append((path, "link to a folder: not followed"))
        else:
            seen.ignored.append((path, "not inside a class folder"))
    return names


def images_below(root: str, below: str, seen: Walk) -> list[str]:
    """Paths of all images inside a folder and the folders in it, sorted."""
    found, waiting = [], [below]
    while waiting:
        folder = waiting.pop()
        for entry in entries(root, folder, seen):
            path = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            elif not os.path.isfile(entry.path) if entry.is_symlink() else not entry.is_file():
                seen.ignored.append((shown(path), "not a regular file"))
            elif is_image(entry.name):
                found.append(path)
            else:
                seen.ignored.append((shown(path), "not an image by its name"))
    return sorted(found)


def remember(root: str, seen: Walk, cache: Path) -> None:
    """Keep a walk for the next start, unless one of its folders was changed just now, or something
    in it may change without its folder's knowledge (rights, what a link leads to)."""
    if any(reason.startswith(("cannot list", "not a regular file")) for _, reason in seen.ignored):
        return
    if max(seen.folders.values()) > time.time_ns() - int(SETTLED_S * 1e9):
        return
    pieces = [
        piece(split, label, paths)
        for split, labelled in seen.found.items()
        for label, paths in labelled.items()
    ]
    facts = {
        "root": os.fsencode(os.path.abspath(root)).hex(),
        "ignored": seen.ignored,
        "folders": [[os.fsencode(name).hex(), time] for name, time in seen.folders.items()],
    }
    table = pa.Table.from_batches(pieces, schema=WALK)
    table = table.replace_schema_metadata({"walk": json.dumps(facts)})
    with suppress(OSError):  # it only saves time
        draft = temporary(cache)
        pq.write_table(table, draft)
        publish(draft, cache)


def piece(split: str, label: str, paths: list[str]) -> pa.RecordBatch:
    """A class as it is kept, made by itself: a million paths are never here twice as Python's own
    objects. A class without images is a row without a path."""
    kept: list[bytes | None] = [os.fsencode(path) for path in paths] or [None]
    labels = [os.fsencode(label)] * len(kept)
    columns = {"split": [split] * len(kept), "label": labels, "path": kept}
    return pa.record_batch(columns, schema=WALK)


def remembered(root: str, cache: Path) -> Walk | None:
    """The walk that was kept, if no folder has changed since."""
    try:
        table = pq.read_table(cache)
        facts = json.loads(table.schema.metadata[b"walk"])
        if facts["root"] != os.fsencode(os.path.abspath(root)).hex():
            return None
        times = {os.fsdecode(bytes.fromhex(name)): time for name, time in facts["folders"]}
        for name, changed in times.items():
            if os.stat(os.path.join(root, name)).st_mtime_ns != changed:
                return None
        seen = Walk(ignored=[(path, reason) for path, reason in facts["ignored"]], folders=times)
        for batch in table.to_batches(max_chunksize=65536):
            rows = zip(*(batch.column(name).to_pylist() for name in WALK.names), strict=True)
            for split, label, path in rows:
                images = seen.found.setdefault(split, {}).setdefault(os.fsdecode(label), [])
                if path is not None:
                    images.append(os.fsdecode(path))
        return seen
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return None  # a cache that cannot be read is no cache
