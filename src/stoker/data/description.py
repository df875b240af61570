"""What `dataset.json` must hold before anything else in a set is used.

Invariant: a description without trouble has the classes, the codec and the shards of every split,
of the right types; its names do not lead out of the folder, and its counts add up.
"""

from __future__ import annotations

import re
from typing import Any

CODECS = ("jpeg", "original", "raw")
SPLITS = ("train", "val", "test")
SHARD_NAME = re.compile(r"\d{5,}\.tar")
MOST_BYTES = 1 << 62
LONGEST_NAME = 60


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
    troubles += [split_trouble(split, facts) for split, facts in splits.items()]
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


def split_trouble(split: str, facts: object) -> str | None:
    """Why the description of a split cannot be used; None where it can."""
    if split not in SPLITS:
        return f"{short(split)} is not the name of a split"
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
            count = shard.get(unit)
            if type(count) is not int or not 0 <= count < MOST_BYTES:
                return f"{split}/{shard['name']} has {short(count)} {unit}"
    if len({shard["name"] for shard in shards}) < len(shards):
        return f"two shards of {split} have the same name"
    if facts.get("images") != sum(shard["images"] for shard in shards):
        return f"{split} has {short(facts.get('images'))} images, and its shards have others"
    return None


def short(value: object) -> str:
    """A value of a description as a message shows it."""
    text = repr(value)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}..."
