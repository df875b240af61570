"""The end of packing: the parts become an index for each split, and the set is committed.

Invariants: `dataset.json` is written last; a target without it is not a set. The target then holds
the files that the description lists and no other shard or table.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.commit import sha256_json
from stoker.data.images.encode import Storage
from stoker.data.packing.duplicates import near_duplicates
from stoker.data.packing.report import describe
from stoker.data.packing.shard import TaskPlace
from stoker.data.packing.tables.index_writer import SplitTables, write_table
from stoker.data.packing.tables.repeats import repeated_hashes
from stoker.data.packing.target.target import PackTarget
from stoker.data.seal import FORMAT, NEAR_SHA256, REJECTED_SHA256, WHOLE_FORMAT, sealed
from stoker.data.sources.layout import Listing
from stoker.errors import BadRequest


def finish(
    target: PackTarget,
    listing: Listing[Any],
    counts: dict[str, int],
    storage: Storage,
    request: str,
    place: TaskPlace,
    least_classes: int = 2,
) -> bool:
    """Write the tables and the description of a set, whose splits have these counts of shards;
    False where another process has made the target a set. `place` may count its parts. Raises
    BadRequest where the training images that could be read have fewer than `least_classes`."""
    parts, folder = target.parts(counts), target.work
    indexes, rejected = {}, []
    for split, paths in parts.items():
        indexes[split] = SplitTables(folder / split, paths, len(listing.classes), storage)
        rejected.append(indexes[split].write(split))
    rejects = pa.concat_tables(rejected)
    labels = np.flatnonzero(indexes["train"].summary.labels)
    require_readable(listing, labels.tolist(), rejects, least_classes)
    hashes = {REJECTED_SHA256: write_table(folder / "rejected.parquet", rejects)}
    rows = sum(index.summary.images for index in indexes.values())
    # The parts of a set in a store were downloaded: other machines do not have them.
    counted = None if target.is_stored else place.count(parts, rows, len(listing.classes))
    is_large = any(index.is_large for index in indexes.values())
    repeated = counted.repeated if counted else None
    if repeated is None and is_large:
        repeated = repeated_hashes(chain(*parts.values()), folder / ".parts")
    tables = {split: index.rows_to_compare(repeated) for split, index in indexes.items()}
    summaries = {split: index.summary for split, index in indexes.items()}
    report = describe(listing, summaries, rejects, tables, counted)
    if storage.near_duplicates:
        pairs = near_duplicates({split: index.looks() for split, index in indexes.items()})
        hashes[NEAR_SHA256] = write_table(folder / "near_duplicates.parquet", pairs)
        report["near"] = {"pairs": pairs.num_rows, "examples": pairs.slice(0, 5).to_pylist()}
    splits = {split: index.facts for split, index in indexes.items()}
    shards = {split: index.shards for split, index in indexes.items()}
    description = {
        "format": FORMAT if is_large else WHOLE_FORMAT,
        "fingerprint": fingerprint_of(listing.classes, shards),
        "request": request,
        "classes": list(listing.classes),
        "storage": asdict(storage),
        "held_out": listing.held_out,
        "splits": splits,
        "report": report,
        **hashes,
    }
    return target.commit(sealed(description))


def fingerprint_of(classes: tuple[str, ...], shards: dict[str, list[dict[str, Any]]]) -> str:
    """A hash of the classes and of every shard's bytes."""
    tar_hashes = {split: [shard["sha256"] for shard in shards[split]] for split in shards}
    return sha256_json([classes, tar_hashes])[:16]


def require_readable(
    listing: Listing[Any], labels: list[int], rejects: pa.Table, least_classes: int = 2
) -> None:
    """Raise BadRequest where the training images that could be read have too few classes, which
    are these."""
    if len(labels) >= least_classes:
        return
    problem = f"not one image of {listing.source} could be read, for example"
    if labels:
        problem = (
            f"only one class of {listing.source} has training images that could be read, "
            f"'{listing.classes[labels[0]]}', and training needs at least two; rejected, for "
            "example:"
        )
    # The first rejected image: with two classes listed and fewer left, there is one.
    example = rejects.slice(0, 1).to_pylist()[0]
    raise BadRequest(f"{problem} {example['path']}: {example['reason']}")
