"""A folder of labelled images as a list: which file belongs to which split and class.

Invariants: one walk, no stat per file, nothing read. The list is sorted, so that the same folder
gives the same list. The class map is made from all splits together. Everything left out is named
with its reason. Links to folders are not followed: a walk always ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stoker.data import chance
from stoker.errors import BadRequest

SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "eval": "val",
    "test": "test",
    "testing": "test",
}
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".heic", ".heif", ".avif"),
)
"""Names that promise an image; those in the second row are rejected by name, not passed over."""


@dataclass
class Split:
    """The images of one split: paths below the root, and their classes by number."""

    paths: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Listing:
    """What a folder holds, before any file is opened."""

    root: str
    classes: tuple[str, ...]
    splits: dict[str, Split]
    ignored: list[tuple[str, str]]
    """Path and reason of everything passed over."""
    held_out: float
    """The share of images set aside as `val` because the folder has no such split; else 0."""


def shown(path: str) -> str:
    """A path as valid text without control characters, whatever bytes its name is made of."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def list_folder(root: str, val_share: float = 0.1) -> Listing:
    """List ROOT/CLASS/images or ROOT/{train,val,test}/CLASS/images."""
    if not os.path.isdir(root):
        raise BadRequest(f"no folder at {shown(root)}")
    ignored: list[tuple[str, str]] = []
    top = sorted(folders(root, "", ignored))
    if any(SPLIT_NAMES.get(name.lower()) == "train" for name in top):
        found: dict[str, dict[str, list[str]]] = {}
        for name in top:
            split = SPLIT_NAMES.get(name.lower())
            if split is None:
                ignored.append((shown(name), "not a split: expected train, val or test"))
                continue
            for label in sorted(folders(root, name, ignored)):
                inside = images_below(root, f"{name}/{label}", ignored)
                found.setdefault(split, {}).setdefault(label, []).extend(inside)
    else:
        found = {"train": {name: images_below(root, name, ignored) for name in top}}
    for split, classes in found.items():
        for label in [label for label, paths in classes.items() if not paths]:
            ignored.append((shown(f"{split}/{label}"), "class folder without images"))
            del classes[label]
    found = {split: classes for split, classes in found.items() if classes}
    names = tuple(sorted({label for classes in found.values() for label in classes}))
    if "train" not in found:
        raise BadRequest(
            f"no training images below {shown(root)}: expected {shown(root)}/CLASS/*.jpg "
            f"or {shown(root)}/train/CLASS/*.jpg"
        )
    held_out = val_share if set(found) == {"train"} else 0.0
    if held_out:
        found["train"], found["val"] = hold_out(found["train"], held_out)
    splits = {
        split: flatten(found[split], names)
        for split in ("train", "val", "test")
        if found.get(split)
    }
    return Listing(root, tuple(map(shown, names)), splits, sorted(ignored), held_out)


def entries(root: str, below: str, ignored: list[tuple[str, str]]) -> Iterator[os.DirEntry[str]]:
    """The entries of a folder that are no one's housekeeping."""
    try:
        with os.scandir(os.path.join(root, below)) as listing:
            for entry in listing:
                path = f"{below}/{entry.name}".lstrip("/")
                if entry.name.startswith(".") or entry.name == "__MACOSX":
                    ignored.append((shown(path), "hidden"))
                else:
                    yield entry
    except OSError as error:
        ignored.append((shown(below), f"cannot list: {error.strerror}"))


def folders(root: str, below: str, ignored: list[tuple[str, str]]) -> list[str]:
    """Names of the folders directly inside one, noting what else lies there."""
    names = []
    for entry in entries(root, below, ignored):
        path = shown(f"{below}/{entry.name}".lstrip("/"))
        if entry.is_dir(follow_symlinks=False):
            names.append(entry.name)
        elif entry.is_symlink() and os.path.isdir(entry.path):
            ignored.append((path, "link to a folder: not followed"))
        else:
            ignored.append((path, "not inside a class folder"))
    return names


def images_below(root: str, below: str, ignored: list[tuple[str, str]]) -> list[str]:
    """Paths of all images inside a folder and the folders in it, sorted."""
    found, waiting = [], [below]
    while waiting:
        folder = waiting.pop()
        for entry in entries(root, folder, ignored):
            path = f"{folder}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                waiting.append(path)
            elif not os.path.isfile(entry.path) if entry.is_symlink() else not entry.is_file():
                ignored.append((shown(path), "not a regular file"))
            elif entry.name.lower().endswith(IMAGE_SUFFIXES):
                found.append(path)
            else:
                ignored.append((shown(path), "not an image by its name"))
    return sorted(found)


def hold_out(
    classes: dict[str, list[str]], share: float
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Set a share of each class aside, chosen by a hash; a class of one image stays whole."""
    kept, held = {}, {}
    for label, paths in classes.items():
        aside = min(max(1, round(share * len(paths))), len(paths) - 1)
        chosen = set(chance.permutation(len(paths), "hold out", len(paths))[:aside].tolist())
        kept[label] = [path for number, path in enumerate(paths) if number not in chosen]
        held[label] = [path for number, path in enumerate(paths) if number in chosen]
    return kept, {label: paths for label, paths in held.items() if paths}


def flatten(classes: dict[str, list[str]], names: tuple[str, ...]) -> Split:
    """One split's images in the order they are stored: shuffled once, so that a shard, and any
    stretch of shards, is a fair sample of all classes."""
    numbers = {label: number for number, label in enumerate(names)}
    paths = [path for label in sorted(classes) for path in classes[label]]
    labels = [numbers[label] for label in sorted(classes) for _ in classes[label]]
    order = chance.permutation(len(paths), "storage order", len(paths))
    chosen = np.asarray(labels, dtype=np.int64)[order]
    return Split([paths[place] for place in order], chosen.tolist())
