"""What `dataset.json` must hold before anything else in a set is used.

Invariant: a description without trouble has the classes, the codec and the shards of every split,
of the right types; its names do not lead out of the folder, and its counts add up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stoker.errors import StokerError
from stoker.text import one_line, shown

CODECS = ("jpeg", "original", "raw")
SPLITS = ("train", "val", "test")
SHARD_NAME = re.compile(r"\d{5,}\.tar")
MOST_BYTES = 1 << 62
LONGEST_NAME = 60


class Damaged(StokerError):
    """A file of a set that cannot be used, and why."""

    def __init__(self, path: object, cause: object) -> None:
        self.cause = shown(one_line(str(cause))) or "unreadable"
        super().__init__(
            f"{path} is damaged ({self.cause}): remove the set, then pack again with 'stoker pack'"
        )


def is_parted(facts: Mapping[str, Any]) -> bool:
    """Whether a split has its shards in a table, and its index in partitions."""
    return "shards_sha256" in facts


def description_trouble(description: dict[str, Any]) -> str | None:
    """The first thing in a description that is not as packing writes it; None where all is."""
    if not isinstance(description.get("fingerprint"), str):
        return "it has no fingerprint"
    storage, splits = description.get("storage"), description.get("splits")
    codec = storage.get("codec") if isinstance(storage, dict) else None
    if codec not in CODECS:
        return f"its codec is {short(codec)}"
    if not isinstance(splits, dict):
        return "it has no splits"
    troubles = [class_trouble(description.get("classes"))]
    classes = description.get("classes")
    troubles += [split_trouble(split, facts, classes) for split, facts in splits.items()]
    return next((trouble for trouble in troubles if trouble), None)


def class_trouble(classes: object) -> str | None:
    """Why a list of class names cannot be used; None where it can."""
    if not isinstance(classes, list) or not classes:
        return "it has no classes"
    names: set[str] = set()
    for number, name in enumerate(classes):
        if not isinstance(name, str) or not name:
            return f"class {number} has no name"
        if name in names:
            return f"two classes are called {short(name)}"
        names.add(name)
    return None


def split_trouble(split: str, facts: object, classes: object) -> str | None:
    """Why the description of a split cannot be used; None where it can."""
    if split not in SPLITS:
        return f"{short(split)} is not the name of a split"
    if isinstance(facts, dict) and is_parted(facts):
        return parted_trouble(split, facts, classes)
    shards = facts.get("shards") if isinstance(facts, dict) else None
    if not isinstance(facts, dict) or not isinstance(shards, list):
        return f"{split} has no shards"
    if not isinstance(facts.get("index_sha256"), str):
        return f"{split} has no hash of its index"
    for number, shard in enumerate(shards):
        if not isinstance(shard, dict) or not isinstance(shard.get("sha256"), str):
            return f"shard {number} of {split} has no hash"
        # A name in a description must not lead out of the folder of the set.
        if not SHARD_NAME.fullmatch(str(shard.get("name"))):
            return f"{short(shard.get('name'))} is not the name of a shard"
        for unit in ("images", "bytes"):
            if not is_count(shard.get(unit)):
                return f"{split}/{shard['name']} has {short(shard.get(unit))} {unit}"
    if len({shard["name"] for shard in shards}) < len(shards):
        return f"two shards of {split} have the same name"
    if facts.get("images") != sum(shard["images"] for shard in shards):
        return f"{split} has {short(facts.get('images'))} images, and its shards have others"
    return None


def parted_trouble(split: str, facts: dict[str, Any], classes: object) -> str | None:
    """Why the description of a split with a table of shards cannot be used; None where it can."""
    if not isinstance(facts["shards_sha256"], str):
        return f"{split} has no hash of its shards"
    counts, largest = facts.get("class_counts"), facts.get("largest")
    for name in ("images", "shard_count", "shard_bytes", "stored_bytes", "even_side"):
        if not is_count(facts.get(name)):
            return f"{split} has {short(facts.get(name))} as its {name}"
    if not isinstance(largest, list) or [*map(is_count, largest)] != [True, True]:
        return f"{split} has {short(largest)} as its largest images"
    if not isinstance(counts, list) or not isinstance(classes, list) or len(counts) != len(classes):
        return f"{split} has no count of images for each class"
    if not all(map(is_count, counts)) or sum(counts) != facts["images"]:
        return f"{split} has {short(facts['images'])} images, and its classes have others"
    return None


def is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < MOST_BYTES


def short(value: object) -> str:
    """A value of a description as a message shows it."""
    text = repr(value)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}..."
