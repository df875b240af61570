"""A set that another tool has cut into shards, as images with labels.

Invariants: a set is one folder with an index, or one such folder for each split. Columns are chosen
by name and encoding, or by the user, never by their values. A pickled column is never read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from stoker.commit import sha256_json
from stoker.data.images.decode_any import MAX_BYTES, Rejected
from stoker.data.sources.item import Item
from stoker.data.sources.layout import Ignored, split_of
from stoker.data.sources.shards.index import INDEX, Wrong, read_index
from stoker.data.sources.shards.litdata import LIT_TOOL, is_litdata, litdata_files
from stoker.data.sources.shards.mds import TOOL, is_mds, mds_files
from stoker.data.sources.shards.samples import (
    SampleColumn,
    SampleFile,
    reading_shard,
    samples_of,
    values_of,
)
from stoker.data.sources.shards.values import (
    PICKLES,
    holds_image,
    holds_label,
    image_file,
    label_of,
    may_hold_image,
)
from stoker.data.sources.tables import KNOWN, label_name
from stoker.errors import BadRequest, StokerError
from stoker.text import shown

NAMES = {
    "image": (*KNOWN["image"], "x", "pixels", "0"),
    "label": (*KNOWN["label"], "y", "1"),
    "split": KNOWN["split"],
}
"""Common names of the columns by role, the most likely first; both tools' own examples use x and y,
and the values of a tuple have numbers."""
FIRST_SAMPLES = 1000
"""Samples that show whether labels are classes: their images are read along."""


@dataclass(frozen=True)
class SampleSet:
    """The shards of a set by split, and its columns for images, labels and splits."""

    tool: str
    files: dict[str, list[SampleFile]]
    """By split; under "" where the set has no folders for splits."""
    columns: dict[str, str]
    """Column names by role: image, label and, where there is one, split."""
    root: Path

    def stamp(self) -> list[str]:
        """Identifies the files, their sizes, their times and the columns used."""
        paths = [file.path for files in self.files.values() for file in files]
        facts = [[os.fsencode(path.resolve()).hex(), *size_and_time(path)] for path in paths]
        return [sha256_json([facts, sorted(self.columns.items())])]

    def first_labels(self) -> Iterator[Any]:
        for files in list(self.files.values())[:1]:
            yield from islice(
                (label for file in files for _, _, label, _ in self.rows(file)), FIRST_SAMPLES
            )

    def items(self, ignored: Ignored) -> Iterator[Item]:
        """Every sample as an image with a label and a split; the others are added to `ignored`.
        Raises StokerError where a shard is damaged."""
        for split, files in self.files.items():
            for file in files:
                folder = f"{split}/" if split else ""
                for number, (data, reason, label, own_split) in enumerate(self.rows(file)):
                    name = f"{folder}{file.path.name}/{number:08d}"
                    class_name = label_name(label, ())
                    where = split or (split_of(own_split) if own_split else "train")
                    if class_name is None:
                        ignored.append((shown(name), reason or "sample without a label"))
                    elif where is None:
                        ignored.append((shown(name), "not a split: expected train, val or test"))
                    else:
                        yield Item(name, data, reason, class_name, split_of(where))

    def rows(self, file: SampleFile) -> Iterator[tuple[bytes | None, str | None, Any, str]]:
        """Image, reason for a failure, label and split of each sample of a shard."""
        encodings = {column.name: column.encoding for column in file.columns}
        image, label, split = (self.columns.get(role, "") for role in NAMES)
        for name in (image, label):
            if name not in encodings:
                raise StokerError(f"{shown(str(file.path))} has no column {name!r} as others have")
        for sample in samples_of(file):
            if sample is None:
                yield None, f"file larger than {MAX_BYTES >> 20} MiB", None, ""
                continue
            with reading_shard(file.path):
                values = values_of(sample, file.columns)
            named = str(label_of("str", values[split]) or "") if split in values else ""
            value = label_of(encodings[label], values[label])
            try:
                data = image_file(encodings[image], values[image])
            except Rejected as rejection:
                yield None, str(rejection), value, named
            else:
                yield data, None, value, named


def size_and_time(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def sample_set(source: Path, chosen: dict[str, str]) -> SampleSet | None:
    """The set in a folder; None where it is none. `chosen` names columns by role. Raises BadRequest
    where an index or a column is not usable."""
    folders = set_folders(source)
    tools: set[str] = set()
    files: dict[str, list[SampleFile]] = {}
    for split, folder in folders.items():
        try:
            index = read_index(folder)
            if index is None or not (is_mds(index) or is_litdata(index)):
                if files or any(folder.glob("shard.*.mds*")) or any(folder.glob("chunk-*.bin")):
                    raise Wrong("it is not the index of a set")
                return None
            tools.add(TOOL if is_mds(index) else LIT_TOOL)
            read = mds_files if is_mds(index) else litdata_files
            files[split] = read(folder, index)
        except Wrong as error:
            raise BadRequest(
                f"{shown(str(folder / INDEX))} cannot be used: {shown(str(error))}"
            ) from error
    shards = [file for some in files.values() for file in some]
    if not shards:
        return None
    columns = chosen_columns(shards[0].columns, chosen, source)
    return SampleSet(" and ".join(sorted(tools)), files, columns, source)


def set_folders(source: Path) -> dict[str, Path]:
    """The folders with an index by split; the source itself under "" where it has one."""
    if (source / INDEX).is_file():
        return {"": source}
    folders: dict[str, Path] = {}
    if source.is_dir():
        for name in sorted(path.name for path in source.iterdir()):
            split = split_of(name)
            if split and split not in folders and (source / name / INDEX).is_file():
                folders[split] = source / name
    return folders


def chosen_columns(
    columns: tuple[SampleColumn, ...], chosen: dict[str, str], source: Path
) -> dict[str, str]:
    """Column names by role. Raises BadRequest where one is missing, or cannot be used."""
    encodings = {column.name: column.encoding for column in columns}
    roles: dict[str, str] = {}
    for role in NAMES:
        name = chosen.get(role) or guessed(role, encodings, roles)
        if not name and role == "split":
            continue
        listed = ", ".join(f"{shown(one)} ({shown(kind)})" for one, kind in encodings.items())
        if name not in encodings:
            called = f" called {name!r}" if name else ""
            raise BadRequest(
                f"{shown(str(source))} has no column for the {role}{called}: it has "
                f"{listed or 'none'}; name it with --columns {role}=NAME"
            )
        if encodings[name] in PICKLES:
            raise BadRequest(
                f"column {name!r} of {shown(str(source))} is pickled, and reading it would run "
                f"whatever code it holds: it is refused; the columns are {listed}"
            )
        usable = may_hold_image if role == "image" else holds_label
        if not usable(encodings[name]):
            raise BadRequest(
                f"column {name!r} of {shown(str(source))} is '{shown(encodings[name])}', which is "
                f"no {role}: the columns are {listed}; name another with --columns {role}=NAME"
            )
        roles[role] = name
    return roles


def guessed(role: str, encodings: dict[str, str], taken: dict[str, str]) -> str:
    """The most likely column of a role: by name, then as the only one of a fitting encoding."""
    free = {name: kind for name, kind in encodings.items() if name not in taken.values()}
    fits = [name for name, kind in free.items() if fitting(role, kind)]
    known = [name for usual in NAMES[role] for name in free if name.lower() == usual]
    named = [name for name in known if name in fits]
    if role == "image":
        sure = [name for name in fits if holds_image(encodings[name])]
        named = [name for name in named if name in sure] or (sure if len(sure) == 1 else named)
    # A pickled label is named in the refusal, though it fits nothing.
    pickled = [name for name in known if free[name] in PICKLES]
    if role != "split":
        named = named or pickled or (fits if len(fits) == 1 else [])
    return named[0] if named else ""


def fitting(role: str, encoding: str) -> bool:
    return may_hold_image(encoding) if role == "image" else holds_label(encoding)
