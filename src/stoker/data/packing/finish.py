"""The end of packing: the parts become an index for each split, and the set is committed.

Invariants: `dataset.json` is written last; a folder without it is not a set. The folder then holds
the files that the description lists and no other shard or table.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stoker.commit import publish, sha256_file, sha256_json, temporary, write_json
from stoker.data.images.encode import Storage
from stoker.data.packing.duplicates import near_duplicates
from stoker.data.packing.report import describe
from stoker.data.packing.shard import part_facts, part_path
from stoker.data.seal import FORMAT, NEAR_SHA256, REJECTED_SHA256, sealed
from stoker.data.sources.layout import Listing
from stoker.errors import BadRequest


def finish(
    target: Path,
    listing: Listing[Any],
    counts: dict[str, int],
    storage: Storage,
    request: str,
    least_classes: int = 2,
) -> None:
    """Write the tables and the description of a set, whose splits have these counts of shards.
    Raises BadRequest where the training images that could be read have fewer than `least_classes`.
    """
    splits: dict[str, dict[str, Any]] = {}
    tables: dict[str, pa.Table] = {}
    rejected = []
    unused = ["reason"] if storage.near_duplicates else ["reason", "look"]
    for split in listing.splits:
        paths = [part_path(target, split, number) for number in range(counts[split])]
        shards = [pq.read_table(path) for path in paths]
        rows = pa.concat_tables([shard.replace_schema_metadata(None) for shard in shards])
        rejected.append(rejects_of(rows, split))
        tables[split] = rows.filter(rows.column("reason").is_null()).drop_columns(unused)
        splits[split] = {
            "images": tables[split].num_rows,
            "index_sha256": write_table(target / split / "index.parquet", tables[split]),
            "shards": [describe_shard(*numbered) for numbered in enumerate(shards)],
        }
    require_readable(listing, tables["train"], rejected[0], least_classes)
    rejects = pa.concat_tables(rejected)
    hashes = {REJECTED_SHA256: write_table(target / "rejected.parquet", rejects)}
    report = describe(listing, tables, rejects)
    if storage.near_duplicates:
        pairs = near_duplicates(tables)
        hashes[NEAR_SHA256] = write_table(target / "near_duplicates.parquet", pairs)
        report["near"] = {"pairs": pairs.num_rows, "examples": pairs.slice(0, 5).to_pylist()}
    tar_hashes = {name: [shard["sha256"] for shard in splits[name]["shards"]] for name in splits}
    description = {
        "format": FORMAT,
        "fingerprint": sha256_json([listing.classes, tar_hashes])[:16],
        "request": request,
        "classes": list(listing.classes),
        "storage": asdict(storage),
        "held_out": listing.held_out,
        "splits": splits,
        "report": report,
        **hashes,
    }
    remove_other_shards(target, splits)
    write_json(target / "dataset.json", sealed(description))
    clear_up(target)


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


def remove_other_shards(target: Path, splits: dict[str, dict[str, Any]]) -> None:
    """Remove shards of an interrupted pack with other settings, which a reader of `*.tar` reads."""
    for split in ("train", "val", "test"):
        listed = {shard["name"] for shard in splits.get(split, {}).get("shards", ())}
        for tar in (target / split).glob("*.tar"):
            if tar.name not in listed:
                tar.unlink()
        if split not in splits and (target / split).is_dir():
            shutil.rmtree(target / split)


def write_table(path: Path, table: pa.Table) -> str:
    """Write a Parquet file, complete or not at all; returns its SHA-256."""
    draft = temporary(path)
    pq.write_table(table, draft)
    publish(draft, path)
    return sha256_file(path)


def clear_up(target: Path) -> None:
    """Remove the parts of a committed set, and the temporary files of killed workers."""
    shutil.rmtree(target / ".parts", ignore_errors=True)
    for draft in [*target.glob(".*.tmp"), *target.glob("*/.*.tmp")]:
        draft.unlink(missing_ok=True)
