"""The end of packing: the parts become an index for each split, and the set is committed.

Invariants: `dataset.json` is written last; a target without it is not a set. The target then holds
the files that the description lists and no other shard or table.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stoker.commit import publish, sha256_file, sha256_json, temporary
from stoker.data.images.encode import Storage
from stoker.data.packing.duplicates import near_duplicates
from stoker.data.packing.report import describe
from stoker.data.packing.shard import TaskPlace
from stoker.data.packing.target.part import part_facts
from stoker.data.packing.target.target import PackTarget
from stoker.data.seal import FORMAT, NEAR_SHA256, REJECTED_SHA256, sealed
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
    splits: dict[str, dict[str, Any]] = {}
    tables: dict[str, pa.Table] = {}
    rejected = []
    unused = ["reason"] if storage.near_duplicates else ["reason", "look"]
    parts, folder = target.parts(counts), target.work
    for split, paths in parts.items():
        shards = [pq.read_table(path) for path in paths]
        rows = pa.concat_tables([shard.replace_schema_metadata(None) for shard in shards])
        rejected.append(rejects_of(rows, split))
        tables[split] = rows.filter(rows.column("reason").is_null()).drop_columns(unused)
        splits[split] = {
            "images": tables[split].num_rows,
            "index_sha256": write_table(folder / split / "index.parquet", tables[split]),
            "shards": [describe_shard(*numbered) for numbered in enumerate(shards)],
        }
    require_readable(listing, tables["train"], rejected[0], least_classes)
    rejects = pa.concat_tables(rejected)
    hashes = {REJECTED_SHA256: write_table(folder / "rejected.parquet", rejects)}
    rows = sum(table.num_rows for table in tables.values())
    # The parts of a set in a store were downloaded: other machines do not have them.
    counted = None if target.is_stored else place.count(parts, rows, len(listing.classes))
    report = describe(listing, tables, rejects, counted)
    if storage.near_duplicates:
        pairs = near_duplicates(tables)
        hashes[NEAR_SHA256] = write_table(folder / "near_duplicates.parquet", pairs)
        report["near"] = {"pairs": pairs.num_rows, "examples": pairs.slice(0, 5).to_pylist()}
    description = {
        "format": FORMAT,
        "fingerprint": fingerprint_of(listing.classes, splits),
        "request": request,
        "classes": list(listing.classes),
        "storage": asdict(storage),
        "held_out": listing.held_out,
        "splits": splits,
        "report": report,
        **hashes,
    }
    return target.commit(sealed(description))


def fingerprint_of(classes: tuple[str, ...], splits: dict[str, dict[str, Any]]) -> str:
    """A hash of the classes and of every shard's bytes."""
    tar_hashes = {name: [shard["sha256"] for shard in splits[name]["shards"]] for name in splits}
    return sha256_json([classes, tar_hashes])[:16]


def require_readable(
    listing: Listing[Any], train: pa.Table, rejects: pa.Table, least_classes: int = 2
) -> None:
    """Raise BadRequest where the training images that could be read have too few classes."""
    labels = pc.unique(train.column("label")).to_pylist()
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


def rejects_of(rows: pa.Table, split: str) -> pa.Table:
    """The rows of rejected.parquet for one split."""
    rejects = rows.filter(rows.column("reason").is_valid()).select(["path", "label", "reason"])
    return rejects.append_column("split", pa.array([split] * rejects.num_rows, pa.string()))


def describe_shard(number: int, part: pa.Table) -> dict[str, Any]:
    facts = part_facts(part)
    return {
        "name": f"{number:05d}.tar",
        "images": part.column("reason").null_count,
        "bytes": int(facts["bytes"]),
        "sha256": facts["sha256"],
    }


def write_table(path: Path, table: pa.Table) -> str:
    """Write a Parquet file, complete or not at all; returns its SHA-256."""
    path.parent.mkdir(exist_ok=True)
    draft = temporary(path)
    pq.write_table(table, draft)
    publish(draft, path)
    return sha256_file(path)
