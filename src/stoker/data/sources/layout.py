"""Which images a set will hold: splits, classes, and the order in which they are stored.

Invariants: a pure function of the names in the source. The class map is made from all splits
together. Everything left out is listed with its reason. The same images give the same listing,
whether they come from a folder, an archive of it or a list of its files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from stoker import chance
from stoker.text import shown

SPLIT_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "eval"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".heic", ".heif", ".avif"),
)
"""Those in the second row cannot be decoded: such a file is rejected by name, not ignored."""

Image = TypeVar("Image", str, int)
"""How a source identifies an image: by path, or by row of the staged images."""
ByClass = dict[str, dict[str, list[Image]]]
"""Images by split and class, each list in the order of the images' names."""
Ignored = list[tuple[str, str]]
"""Path and reason of each file that was ignored."""


@dataclass
class Split(Generic[Image]):
    """The images of one split in the order they are stored, and their classes by number."""

    images: list[Image]
    labels: list[int]


@dataclass(frozen=True)
class Listing(Generic[Image]):
    """The images of a source, before any is decoded."""

    source: str
    classes: tuple[str, ...]
    splits: dict[str, Split[Image]]
    ignored: Ignored
    held_out: float
    """Share of images set aside as `val` because the source has no such split; or 0."""


def is_hidden(name: str) -> bool:
    """Whether a file or folder belongs to a tool or a system, not to the data."""
    return name.startswith(".") or name == "__MACOSX"


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def arrange(
    source: str,
    images: ByClass[Image],
    ignored: Ignored,
    val_share: float,
    classes: tuple[str, ...] = (),
) -> Listing[Image]:
    """Number the classes, set validation images aside where there are none, shuffle each split.
    `classes` are names in the source's own order; without them the names are sorted."""
    empty: Ignored = [
        (shown(f"{split}/{label}"), "class folder without images")
        for split, labelled in images.items()
        for label, members in labelled.items()
        if not members
    ]
    images = {
        split: {label: members for label, members in labelled.items() if members}
        for split, labelled in images.items()
        if any(labelled.values())
    }
    names = classes or tuple(sorted({label for labelled in images.values() for label in labelled}))
    held_out = val_share if set(images) == {"train"} else 0.0
    if held_out:
        images["train"], images["val"] = hold_out(images["train"], held_out)
        held_out = held_out if images["val"] else 0.0
    numbers = {label: number for number, label in enumerate(names)}
    present = (name for name in ("train", "val", "test") if any(images.get(name, {}).values()))
    splits = {name: shuffle(images[name], numbers) for name in present}
    return Listing(source, tuple(map(shown, names)), splits, sorted([*ignored, *empty]), held_out)


def hold_out(
    classes: dict[str, list[Image]], share: float
) -> tuple[dict[str, list[Image]], dict[str, list[Image]]]:
    """Training and validation images by class; the only image of a class stays in training."""
    kept, held = {}, {}
    for label, images in classes.items():
        aside = min(max(1, round(share * len(images))), len(images) - 1)
        chosen = set(chance.permutation(len(images), "hold out", len(images))[:aside].tolist())
        kept[label] = [image for number, image in enumerate(images) if number not in chosen]
        held[label] = [image for number, image in enumerate(images) if number in chosen]
    return kept, {label: images for label, images in held.items() if images}


def shuffle(classes: dict[str, list[Image]], numbers: dict[str, int]) -> Split[Image]:
    """The order of storage, shuffled: any sequence of shards is a fair sample of all classes."""
    images = [image for label in sorted(classes) for image in classes[label]]
    labels = [numbers[label] for label in sorted(classes) for _ in classes[label]]
    order = chance.permutation(len(images), "storage order", len(images))
    ordered_labels = np.asarray(labels, dtype=np.int64)[order]
    return Split([images[index] for index in order.tolist()], ordered_labels.tolist())


def by_layout(names: list[str], ignored: Ignored) -> ByClass[int]:
    """Rows of names by split and class, as in a folder: CLASS/... or {train,val,test}/CLASS/...,
    below any folders that all of them share."""
    parts = {row: name.split("/") for row, name in enumerate(names)}
    while True:
        firsts = {path[0] for path in parts.values() if len(path) > 1}
        # A few files beside the class folders do not make the parent folder a class.
        deep = sum(len(path) > 2 for path in parts.values()) > len(parts) / 2
        if not (len(firsts) == 1 and deep) or split_of(next(iter(firsts))) == "train":
            break
        parts = {row: path[1:] if len(path) > 1 else path for row, path in parts.items()}
    splits = any(split_of(path[0]) == "train" and len(path) > 1 for path in parts.values())
    images: ByClass[int] = {}
    for row in sorted(parts, key=lambda row: "/".join(parts[row])):
        path = parts[row]
        split = split_of(path[0]) if splits else "train"
        inside = path[1:] if splits else path
        if split is None:
            ignored.append((shown(names[row]), "not a split: expected train, val or test"))
        elif len(inside) < 2:
            ignored.append((shown(names[row]), "not inside a class folder"))
        else:
            images.setdefault(split, {}).setdefault(inside[0], []).append(row)
    return images


def split_of(name: str) -> str | None:
    return SPLIT_NAMES.get(name.lower())


def in_number_order(names: set[str]) -> tuple[str, ...]:
    """Class names sorted; by value where all of them are numbers."""
    if all(name.isascii() and name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))
