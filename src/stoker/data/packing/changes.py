"""What has changed in a source since it was packed, and the commands that pack it again.

Invariant: an image is identified by its path and its label, as in the index; no image is opened.
"""

from __future__ import annotations

import itertools
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.data.dataset import Dataset
from stoker.data.sources.layout import Listing
from stoker.text import plural, shown


def refusal_of(target: Path, request: str, listing: Listing[Any] | None) -> str:
    """Why a target that holds the set of another request is refused, and what to do. `listing`
    is the same source as it is now; None for another source, or one that is not known yet."""
    changes = changes_of(target, listing) if listing else ""
    if listing is None or not changes:
        return (
            f"{target} holds another packed set (other images or other settings): "
            "name a new folder to pack into, or remove this one"
        )
    for number in itertools.count(2):
        other = Path(f"{target}-{number}")
        packed = Dataset.is_packed(other)
        if not other.exists() or (packed and Dataset(other).description["request"] == request):
            break
    source, new, old = (shown(shlex.quote(str(path))) for path in (listing.source, other, target))
    repack = "" if packed else f"'stoker pack {source} {new}' packs the images of now, then "
    return (
        f"{shown(listing.source)} has changed since it was packed into {target} ({changes}): "
        f"{repack}'stoker train {new}' trains on them; 'stoker train {old}' trains on the old set"
    )


def changes_of(target: Path, listing: Listing[Any]) -> str:
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


def packed_labels(target: Path) -> dict[str, str]:
    """The class of each image that was packed or rejected, by its path; empty where the tables of
    the set cannot be read."""
    classes = Dataset(target).classes
    files = [*sorted(target.glob("*/index.parquet")), target / "rejected.parquet"]
    try:
        tables = [pq.read_table(file, columns=["path", "label"]) for file in files]
    except (OSError, pa.ArrowException):
        return {}
    rows = (row for table in tables for row in zip(*table.to_pydict().values(), strict=True))
    return {path: classes[label] for path, label in rows}
