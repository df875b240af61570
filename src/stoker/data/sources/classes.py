"""Refuses classes that cannot have been meant: one alone, or splits taken for classes.

Invariant: names alone decide; no image is opened. A refusal names the folder that was probably
meant, where there is one.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from stoker.data.sources.layout import SPLIT_NAMES, Listing, is_hidden, is_image, split_of
from stoker.errors import BadRequest
from stoker.text import shown

LIKE_A_SPLIT = re.compile(
    rf"({'|'.join(SPLIT_NAMES)})[-_ .]*(set|images?|imgs?|data|dataset|split|folder)?"
)
LOOKED_AT = 100
"""Folders that are looked at, at most, to find out whether one holds images."""
MOST_NAMES = 1000
"""Names that are compared with one that does not exist, at most."""


def nothing_at(what: str, path: str) -> BadRequest:
    """The error for a path that does not exist, with the name beside it that was probably meant."""
    folder, name = os.path.split(path.rstrip("/"))
    names: list[str] = []
    with suppress(OSError), os.scandir(folder or ".") as entries:
        names = [entry.name for entry in islice(entries, MOST_NAMES)]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    hint = f": did you mean '{shown(str(Path(folder) / near[0]))}'?" if near else ""
    return BadRequest(f"no {what} at {shown(path)}{hint}")


def require_classes(
    listing: Listing[Any], advice: Callable[[], str], one_is_enough: bool = False
) -> None:
    """Raise BadRequest, with the advice, where all training images have the same class."""
    numbers = set(listing.splits["train"].labels)
    if len(numbers) == 1 and not one_is_enough:
        name = listing.classes[numbers.pop()]
        raise BadRequest(
            f"{shown(listing.source)} has only one class with training images, '{name}', and "
            f"training needs at least two: {advice()}"
        )


def require_folder_classes(listing: Listing[str], root: str, one_is_enough: bool = False) -> None:
    """Raise BadRequest where the folders below a root cannot be its classes."""
    refuse_splits(listing)
    images = listing.splits["train"].images
    require_classes(listing, lambda: folder_advice(images, root), one_is_enough)


def folder_advice(paths: list[str], root: str) -> str:
    """Which folder was probably meant by one with these training images, all of one class."""
    top = paths[0].partition("/")[0]
    if split_of(top) == "train":
        inner = class_parent(path.partition("/")[2] for path in paths)
        if inner is not None:
            below = shown(f"{root}/{top}/{inner}")
            return f"the folders in {below} look like the classes: move them into {root}/{top}"
        return f"expected {shown(root)}/{top}/CLASS/*.jpg for each class"
    inner = class_parent(paths)
    meant = f"{root}/{inner}" if inner else parent_of_classes(root)
    if meant:
        return f"did you mean '{shown(os.path.normpath(meant))}'?"
    return f"expected {shown(root)}/CLASS/*.jpg for each class"


def require_archive_classes(
    listing: Listing[int], names: list[str], one_is_enough: bool = False
) -> None:
    """Raise BadRequest where the folders in an archive, with these images, cannot be classes."""
    refuse_splits(listing)

    def advice() -> str:
        parts = names[0].split("/")
        # Below the folder of the training split, if there is one.
        above = next((n for n, part in enumerate(parts, 1) if split_of(part) == "train"), 0)
        inner = class_parent(name.split("/", above)[-1] for name in names)
        if inner:
            meant = shown("/".join([*parts[:above], inner]))
            return f"the folders in {meant} look like the classes: move them one level up"
        return "expected CLASS/*.jpg or train/CLASS/*.jpg in it"

    require_classes(listing, advice, one_is_enough)


def refuse_splits(listing: Listing[Any]) -> None:
    """Raise BadRequest where all classes are named like splits."""
    if len(listing.classes) > 1 and all(
        LIKE_A_SPLIT.fullmatch(name.lower()) for name in listing.classes
    ):
        raise BadRequest(
            f"the folders of {shown(listing.source)} are named like splits "
            f"({', '.join(listing.classes)}), not like classes: rename them to train, val and test"
        )


def class_parent(paths: Iterable[str]) -> str | None:
    """The outermost folder in which several folders hold images, or training images; None where
    there is none. The empty text is the top."""
    parts, prefix = [path.split("/") for path in paths], ""
    while True:
        parts = [path for path in parts if len(path) > 1]
        firsts = {path[0] for path in parts}
        if len(firsts) > 1 or any(split_of(first) == "train" for first in firsts):
            return prefix
        if not firsts:
            return None
        prefix = f"{prefix}/{firsts.pop()}".lstrip("/")
        parts = [path[1:] for path in parts]


def parent_of_classes(root: str) -> str | None:
    """The folder above a class folder: several folders in it hold images. None for no such."""
    parent = os.path.normpath(os.path.join(root, ".."))  # noqa: PTH118
    if split_of(os.path.basename(os.path.abspath(parent))):  # noqa: PTH100, PTH119
        return os.path.normpath(os.path.join(parent, ".."))  # noqa: PTH118
    try:
        with os.scandir(parent) as entries:
            folders = [entry.path for entry in entries if is_class_folder(entry)]
    except OSError:
        return None
    with_images = islice(filter(holds_images, folders[:LOOKED_AT]), 2)
    return parent if len(list(with_images)) == 2 else None


def is_class_folder(entry: os.DirEntry[str]) -> bool:
    # A packed set beside its source holds no images by name, but takes time to look through.
    return entry.is_dir(follow_symlinks=False) and not is_hidden(entry.name)


def holds_images(folder: str) -> bool:
    below = islice(os.walk(folder), LOOKED_AT)
    return any(is_image(name) for _, _, files in below for name in files)
