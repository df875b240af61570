"""Which images a set will hold: splits, classes, and the order in which they are stored.

Invariants: a pure function of what the source found. The class map is made from all splits
together. Everything left out is named with its reason. The same images give the same listing,
whether they come from a folder, an archive of it or a list of its files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from stoker import chance
from stoker.text import shown

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

Image = TypeVar("Image", str, int)
"""What a source calls an image: a path, or a row of what was staged."""
Found = dict[str, dict[str, list[Image]]]
"""Images by split and class, each list in the order of the images' names."""
Ignored = list[tuple[str, str]]
"""Path and reason of what was passed over."""


@dataclass
class Split(Generic[Image]):
    """The images of one split in the order they are stored, and their classes by number."""

    images: list[Image]
    labels: list[int]


@dataclass(frozen=True)
class Listing(Generic[Image]):
    """What a source holds, before any image is decoded for good."""

    source: str
    classes: tuple[str, ...]
    splits: dict[str, Split[Image]]
    ignored: Ignored
    held_out: float
    """The share of images set aside as `val` because the source has no such split; else 0."""


def is_hidden(name: str) -> bool:
    """Whether a file or folder is somebody's housekeeping."""
    return name.startswith(".") or name == "__MACOSX"


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def arrange(
    source: str,
    found: Found[Image],
    ignored: Ignored,
    val_share: float,
    classes: tuple[str, ...] = (),
) -> Listing[Image]:
    """Number the classes, hold images out where there is nothing to measure on, mix the rest.

    `classes` are names in an order that the source itself gives; without them they are sorted.
    """
    empty: Ignored = [
        (shown(f"{split}/{label}"), "class folder without images")
        for split, labelled in found.items()
        for label, images in labelled.items()
        if not images
    ]
    found = {
        split: {label: images for label, images in labelled.items() if images}
        for split, labelled in found.items()
        if any(labelled.values())
    }
    names = classes or tuple(sorted({label for labelled in found.values() for label in labelled}))
    held_out = val_share if set(found) == {"train"} else 0.0
    if held_out:
        found["train"], found["val"] = hold_out(found["train"], held_out)
    numbers = {label: number for number, label in enumerate(names)}
    splits = {
        split: mixed(found[split], numbers) for split in ("train", "val", "test") if split in found
    }
    splits = {split: images for split, images in splits.items() if images.images}
    return Listing(source, tuple(map(shown, names)), splits, sorted([*ignored, *empty]), held_out)


def hold_out(
    classes: dict[str, list[Image]], share: float
) -> tuple[dict[str, list[Image]], dict[str, list[Image]]]:
    """Set a share of each class aside, chosen by a hash; a class of one image stays whole."""
    kept, held = {}, {}
    for label, images in classes.items():
        aside = min(max(1, round(share * len(images))), len(images) - 1)
        chosen = set(chance.permutation(len(images), "hold out", len(images))[:aside].tolist())
        kept[label] = [image for number, image in enumerate(images) if number not in chosen]
        held[label] = [image for number, image in enumerate(images) if number in chosen]
    return kept, {label: images for label, images in held.items() if images}


def mixed(classes: dict[str, list[Image]], numbers: dict[str, int]) -> Split[Image]:
    """One split's images in the order they are stored: shuffled once, so that a shard, and any
    stretch of shards, is a fair sample of all classes."""
    images = [image for label in sorted(classes) for image in classes[label]]
    labels = [numbers[label] for label in sorted(classes) for _ in classes[label]]
    order = chance.permutation(len(images), "storage order", len(images))
    chosen = np.asarray(labels, dtype=np.int64)[order]
    return Split([images[place] for place in order.tolist()], chosen.tolist())


def by_layout(names: list[str], ignored: Ignored) -> Found[int]:
    """The rows of some files by split and class, told from their names as from a folder:
    CLASS/..., or {train,val,test}/CLASS/..., below any folders that all of them share."""
    parts = {row: name.split("/") for row, name in enumerate(names)}
    while True:
        firsts = {path[0] for path in parts.values() if len(path) > 1}
        # A few strays beside the folders of the classes do not make their parent a class.
        deep = sum(len(path) > 2 for path in parts.values()) > len(parts) / 2
        if not (len(firsts) == 1 and deep) or split_of(next(iter(firsts))) == "train":
            break
        parts = {row: path[1:] if len(path) > 1 else path for row, path in parts.items()}
    splits = any(split_of(path[0]) == "train" and len(path) > 1 for path in parts.values())
    found: Found[int] = {}
    for row in sorted(parts, key=lambda row: "/".join(parts[row])):
        path = parts[row]
        split = split_of(path[0]) if splits else "train"
        inside = path[1:] if splits else path
        if split is None:
            ignored.append((shown(names[row]), "not a split: expected train, val or test"))
        elif len(inside) < 2:
            ignored.append((shown(names[row]), "not inside a class folder"))
        else:
            found.setdefault(split, {}).setdefault(inside[0], []).append(row)
    return found


def split_of(name: str) -> str | None:
    return SPLIT_NAMES.get(name.lower())


def in_number_order(names: set[str]) -> tuple[str, ...]:
    """Names of classes sorted: as numbers where all of them are numbers."""
    if all(name.isascii() and name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
