"""A folder of labelled images as a list: which file belongs to which split and class.

Invariants: one walk, no stat per file, no file is opened. The list is sorted: the same folder gives
the same list. Everything left out is listed with its reason. Links to folders are not followed, so
that a walk always ends. A walk is saved beside the packed set and used again while none of the
folders has changed; that check needs one stat per folder and no listing.
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
from stoker.data.sources.classes import parent_of_classes
from stoker.data.sources.layout import (
    ByClass,
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
"""A folder that changed so shortly before a walk may change again with the same time stamp."""
WALK = pa.schema([("split", pa.string()), ("label", pa.binary()), ("path", pa.binary())])


@dataclass
class Walk:
    """The images and ignored files below a folder, and when each folder in it was last changed."""

    images: ByClass[str] = field(default_factory=dict)
    ignored: Ignored = field(default_factory=list)
    folders: dict[str, tuple[int, int]] = field(default_factory=dict)


def list_folder(root: str, val_share: float = 0.1, tree: Walk | None = None) -> Listing[str]:
    """List ROOT/CLASS or ROOT/{train,val,test}/CLASS. Raises BadRequest without training images."""
    if not os.path.isdir(root):
        raise BadRequest(f"no folder at {shown(root)}")
    tree = tree or walk(root)
    if not any(tree.images.get("train", {}).values()):
        flat = any(is_image(path) and "/" not in path for path, _ in tree.ignored)
        meant = parent_of_classes(root) if flat else None
        raise BadRequest(
            f"no training images below {shown(root)}: expected {shown(root)}/CLASS/*.jpg "
            f"or {shown(root)}/train/CLASS/*.jpg"
            + (f"; did you mean '{shown(meant)}'?" if meant else "")
        )
    return arrange(root, tree.images, tree.ignored, val_share)


def walk(root: str) -> Walk:
    """List everything below a folder, once."""
    tree = Walk()
    top = sorted(folders(root, "", tree))
    if not any(split_of(name) == "train" for name in top):
        tree.images["train"] = {name: images_below(root, name, tree) for name in top}
        return tree
    for name in top:
        split = split_of(name)
        if split is None:
            tree.ignored.append((shown(name), "not a split: expected train, val or test"))
            continue
        for label in sorted(folders(root, name, tree)):
            inside = images_below(root, f"{name}/{label}", tree)
            tree.images.setdefault(split, {}).setdefault(label, []).extend(inside)
    return tree


def entries(root: str, below: str, tree: Walk) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder that are not hidden; record when the folder was changed."""
    try:
        folder = os.path.join(root, below)
        tree.folders[below] = times_of(folder)
        with os.scandir(folder) as listing:
            for entry in listing:
                path = f"{below}/{entry.name}".lstrip("/")
                if is_hidden(entry.name):
                    tree.ignored.append((shown(path), "hidden"))
                else:
                    yield entry
    except OSError as error:
        tree.ignored.append((shown(below), f"cannot list: {error.strerror}"))


def times_of(folder: str) -> tuple[int, int]:
    """When a folder was changed. A copying tool may set the first time back, never the second."""
    status = os.stat(folder)
    return status.st_mtime_ns, status.st_ctime_ns


def folders(root: str, below: str, tree: Walk) -> list[str]:
    """Names of the folders directly inside a folder; other entries are ignored with a reason."""
    names = []
    for entry in entries(root, below, tree):
        path = shown(f"{below}/{entry.name}".lstrip("/"))
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        elif entry.is_symlink() and os.path.isdir(entry.path):
            tree.ignored.append((path, "link to a folder: not followed"))
        else:
            tree.ignored.append((path, "not inside a class folder"))
    return names


def images_below(root: str, below: str, tree: Walk) -> list[str]:
    """Paths of all images inside a folder and the folders in it, sorted."""
    images, waiting = [], [below]
    while waiting:
        folder = waiting.pop()
        for entry in entries(root, folder, tree):
            path = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            elif not os.path.isfile(entry.path) if entry.is_symlink() else not entry.is_file():
                tree.ignored.append((shown(path), "not a regular file"))
            elif is_image(entry.name):
                images.append(path)
            else:
                tree.ignored.append((shown(path), "not an image by its name"))
    return sorted(images)


def save_walk(root: str, tree: Walk, cache: Path) -> None:
    """Save a walk, unless a folder changed just now, or an entry can change without its folder
    (access rights, the target of a link)."""
    if any(reason.startswith(("cannot list", "not a regular file")) for _, reason in tree.ignored):
        return
    if max(changed for changed, _ in tree.folders.values()) > time.time_ns() - int(SETTLED_S * 1e9):
        return
    # One class at a time, so that Python never holds all paths twice.
    batches = [
        class_batch(split, label, paths)
        for split, labelled in tree.images.items()
        for label, paths in labelled.items()
    ]
    facts = {
        "root": os.fsencode(os.path.abspath(root)).hex(),
        "ignored": tree.ignored,
        "folders": [[os.fsencode(name).hex(), *times] for name, times in tree.folders.items()],
    }
    metadata = {"walk": json.dumps(facts)}
    table = pa.Table.from_batches(batches, schema=WALK).replace_schema_metadata(metadata)
    with suppress(OSError):  # without a cache the next start takes longer, nothing else
        draft = temporary(cache)
        pq.write_table(table, draft)
        publish(draft, cache)


def class_batch(split: str, label: str, paths: list[str]) -> pa.RecordBatch:
    """The rows of one class; one without images is a row without a path."""
    encoded: list[bytes | None] = [os.fsencode(path) for path in paths] or [None]
    labels = [os.fsencode(label)] * len(encoded)
    columns = {"split": [split] * len(encoded), "label": labels, "path": encoded}
    return pa.record_batch(columns, schema=WALK)


def load_walk(root: str, cache: Path) -> Walk | None:
    """The saved walk; None where there is none, or where a folder has changed since."""
    try:
        table = pq.read_table(cache)
        facts = json.loads(table.schema.metadata[b"walk"])
        if facts["root"] != os.fsencode(os.path.abspath(root)).hex():
            return None
        times = {
            os.fsdecode(bytes.fromhex(name)): (one, two) for name, one, two in facts["folders"]
        }
        if any(times_of(os.path.join(root, name)) != times[name] for name in times):
            return None
        tree = Walk(ignored=[(path, reason) for path, reason in facts["ignored"]], folders=times)
        for batch in table.to_batches(max_chunksize=65536):
            rows = zip(*(batch.column(name).to_pylist() for name in WALK.names), strict=True)
            for split, label, path in rows:
                images = tree.images.setdefault(split, {}).setdefault(os.fsdecode(label), [])
                if path is not None:
                    images.append(os.fsdecode(path))
        return tree
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return None  # a cache that cannot be read is not used
