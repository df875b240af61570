"""The end of packing: parts become an index a split, the set is described and committed.

Invariants: nothing is a set before `dataset.json` is there, and that is written last. What the
description lists is all that lies in the folder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.commit import publish, sha256_file, temporary, write_json
from stoker.data.images.encode import Storage
from stoker.data.packing.duplicates import near_duplicates
from stoker.data.packing.report import describe
from stoker.data.packing.shard import part_facts
from stoker.data.seal import ALIKE, COMES_WITH_IT, FORMAT, sealed
from stoker.data.sources.layout import Listing
from stoker.errors import BadRequest


def digest_of(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def finish(
    target: Path,
    listing: Listing[Any],
    parts: dict[str, list[Path]],
    storage: Storage,
    request: str,
) -> None:
    """Join the parts into an index a split, describe the set, commit."""
    splits: dict[str, dict[str, Any]] = {}
    tables: dict[str, pa.Table] = {}
    rejected = []
    unused = ["reason"] if storage.near_duplicates else ["reason", "look"]
    for split in listing.splits:
        read = [pq.read_table(part) for part in parts[split]]
        rows = pa.concat_tables([part.replace_schema_metadata(None) for part in read])
        bad = rows.column("reason").is_valid()
        lost = rows.filter(bad).select(["path", "label", "reason"])
        rejected.append(lost.append_column("split", pa.array([split] * lost.num_rows, pa.string())))
        tables[split] = rows.filter(rows.column("reason").is_null()).drop_columns(unused)
        write_table(target / split / "index.parquet", tables[split])
        splits[split] = {
            "images": tables[split].num_rows,
            "index_sha256": sha256_file(target / split / "index.parquet"),
            "shards": [
                {
                    "name": f"{number:05d}.tar",
                    "images": part.column("reason").null_count,
                    "bytes": int(part_facts(part)["bytes"]),
                    "sha256": part_facts(part)["sha256"],
                }
                for number, part in enumerate(read)
            ],
        }
    if not splits["train"]["images"]:
        raise BadRequest(
            f"not one image of {listing.source} could be read: "
            f"{rejected[0].column('reason')[0]} ({rejected[0].column('path')[0]})"
        )
    rejects = pa.concat_tables(rejected)
    write_table(target / "rejected.parquet", rejects)
    more = {COMES_WITH_IT: sha256_file(target / "rejected.parquet")}
    report = describe(listing, tables, rejects)
    if storage.near_duplicates:
        pairs = near_duplicates(tables)
        write_table(target / "near_duplicates.parquet", pairs)
        more[ALIKE] = sha256_file(target / "near_duplicates.parquet")
        report["near"] = {"pairs": pairs.num_rows, "examples": pairs.slice(0, 5).to_pylist()}
    hashes = {
        name: [shard["sha256"] for shard in split["shards"]] for name, split in splits.items()
    }
    description = {
        "format": FORMAT,
        "fingerprint": digest_of(listing.classes, hashes)[:16],
        "request": request,
        "classes": list(listing.classes),
        "storage": asdict(storage),
        "held_out": listing.held_out,
        "splits": splits,
        "report": report,
        **more,
    }
    remove_strays(target, splits)
    write_json(target / "dataset.json", sealed(description))
    clear_up(target)


def remove_strays(target: Path, splits: dict[str, dict[str, Any]]) -> None:
    """Remove shards of an earlier, other plan that was cut short: a reader of `*.tar` must see
    what the description lists and nothing else."""
    for split in ("train", "val", "test"):
        listed = {shard["name"] for shard in splits.get(split, {}).get("shards", ())}
        for tar in (target / split).glob("*.tar"):
            if tar.name not in listed:
                tar.unlink()
        if split not in splits and (target / split).is_dir():
            shutil.rmtree(target / split)


def write_table(path: Path, table: pa.Table) -> None:
    draft = temporary(path)
    pq.write_table(table, draft)
    publish(draft, path)


def clear_up(target: Path) -> None:
    """Remove the parts, now that the whole is committed, and what killed workers left."""
    shutil.rmtree(target / ".parts", ignore_errors=True)
    for draft in [*target.glob(".*.tmp"), *target.glob("*/.*.tmp")]:
        draft.unlink(missing_ok=True)
