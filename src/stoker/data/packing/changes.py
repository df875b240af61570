"""What has changed in a source since it was packed, and the commands that pack it again.

Invariant: an image is identified by its path and its label, as in the index; no image is opened.
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.data.dataset import Dataset
from stoker.data.index.description import is_parted
from stoker.data.packing.target.places import target_of
from stoker.data.seal import REJECTED_SHA256
from stoker.data.sources.layout import Listing
from stoker.errors import StokerError
from stoker.stores.client import StoreClient
from stoker.text import plural, shown


def refusal_of(target: str, request: str, listing: Listing[Any] | None) -> str:
    """Why a target that holds the set of another request is refused, and what to do. `listing`
    is the same source as it is now; None for another source, or one that is not known yet."""
    changes = changes_of(target, listing) if listing else ""
    kind = "location" if target_of(target).is_stored else "folder"
    if listing is None or not changes:
        return (
            f"{target} holds another packed set (other images or other settings): "
            f"name a new {kind} to pack into, or remove this one"
        )
    for number in itertools.count(2):
        other = f"{target}-{number}"
        packed = Dataset.is_packed(other)
        taken = packed or target_of(other).exists
        if not taken or (packed and Dataset(other).description["request"] == request):
            break
    source, new, old = (shown(shlex.quote(str(path))) for path in (listing.source, other, target))
    repack = "" if packed else f"'stoker pack {source} {new}' packs the images of now, then "
    return (
        f"{shown(listing.source)} has changed since it was packed into {target} ({changes}): "
        f"{repack}'stoker train {new}' trains on them; 'stoker train {old}' trains on the old set"
    )


def changes_of(target: str, listing: Listing[Any]) -> str:
    """The images that are new, gone or labelled otherwise; empty where there are none, or where
    the set has no image of the listing."""
    old = packed_labels(target)
    now = {
        shown(path): listing.classes[label]
        for split in listing.splits.values()
        for path, label in zip(split.images, split.labels, strict=True)
    }
    both = old.keys() & now.keys()
    if not both:
        return ""
    new, gone = len(now) - len(both), len(old) - len(both)
    moved = sum(old[path] != now[path] for path in both)
    parts = [
        (new, plural(new, "new image")),
        (gone, f"{gone:,} gone"),
        (moved, f"{moved:,} with another label"),
    ]
    return ", ".join(text for count, text in parts if count)


def packed_labels(target: str) -> dict[str, str]:
    """The class of each image that was packed or rejected, by its path; empty where the tables of
    the set cannot be read, or have too many images to compare."""
    dataset = Dataset(target)
    classes = dataset.classes
    splits = dataset.description["splits"].items()
    if any(is_parted(facts) for _, facts in splits):
        return {}
    tables = {f"{name}/index.parquet": facts["index_sha256"] for name, facts in splits}
    tables["rejected.parquet"] = str(dataset.description.get(REJECTED_SHA256))
    labels: dict[str, str] = {}
    try:
        for name, sha256 in tables.items():
            with table_file(dataset, name, sha256) as file:
                table = pq.read_table(file, columns=["path", "label"]).to_pydict()
            rows = zip(table["path"], table["label"], strict=True)
            labels |= {path: classes[label] for path, label in rows}
    except (OSError, pa.ArrowException, StokerError):
        return {}
    return labels


@contextmanager
def table_file(dataset: Dataset, name: str, sha256: str) -> Iterator[Path]:
    """A table of a set as a file of this machine. Raises StokerError where a store has it not."""
    if dataset.store is None:
        yield dataset.path / name
        return
    path, held = dataset.store.file(StoreClient(dataset.store.location), name, sha256)
    try:
        yield path
    finally:
        held.close()
