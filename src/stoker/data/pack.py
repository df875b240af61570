"""Packing: a folder of labelled images becomes shards, an index and a description.

Invariants: `dataset.json` is written last and is the commit of the whole; without it nothing is a
dataset. Shards are committed one by one, so a killed pack goes on where it was. The same folder
and the same storage give the same bytes, whatever the number of workers and kills.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.commit import publish, sha256_file, temporary, write_json
from stoker.data.index import Dataset
from stoker.data.report import describe
from stoker.data.shard import (
    ShardReport,
    ShardTask,
    Storage,
    part_facts,
    write_shard,
)
from stoker.data.sources import Listing, list_folder, shown
from stoker.errors import BadRequest
from stoker.fleet.local import map_tasks, usable_cores

FORMAT = 1
SHARD_IMAGES = 1000

OURS = re.compile(
    r"\.parts(/.*)?|(.*/)?\.[^/]*\.tmp|rejected\.parquet"
    r"|(train|val|test)(/(\d{5,}\.tar|index\.parquet))?"
)
"""Names that a pack leaves in its target before it is committed."""

Progress = Callable[[ShardReport, int, int], None]
"""Called after each shard with its report, images done and images in all."""


def default_out(folder: str) -> Path:
    """Where a folder is packed to unless the user says otherwise: beside the caller."""
    return Path(f"{Path(folder).resolve().name}-packed")


def pack(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    storage: Storage | None = None,
    val_share: float = 0.1,
    shard_images: int = SHARD_IMAGES,
    workers: int = 0,
    progress: Progress | None = None,
) -> Path:
    """Pack a folder; returns the packed dataset's path. Does nothing where it is done already."""
    source = os.fspath(folder)
    target = Path(out) if out is not None else default_out(source)
    storage = storage or Storage()
    check_storage(storage, target, source)
    listing = list_folder(source, val_share)
    tasks = plan(listing, target, storage, shard_images)
    request = digest_of([task.digest() for task in tasks], listing.classes)
    if already_packed(target, request):
        return target
    target.mkdir(parents=True, exist_ok=True)
    with held(target):
        if already_packed(target, request):
            return target
        total, done = sum(len(task.paths) for task in tasks), 0
        for report in map_tasks(write_shard, tasks, workers or usable_cores()):
            done += report.images + report.rejected
            if progress:
                progress(report, done, total)
        finish(target, listing, tasks, storage, request)
    return target


@contextmanager
def held(target: Path) -> Iterator[None]:
    """One process at a time packs into a folder; others wait and find it done."""
    handle = os.open(target, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def check_storage(storage: Storage, target: Path, source: str) -> None:
    if storage.codec not in ("jpeg", "raw"):
        raise BadRequest(f"codec takes one of jpeg, raw, not {storage.codec!r}")
    if not 1 <= storage.quality <= 100:
        raise BadRequest(f"quality goes from 1 to 100, not {storage.quality}")
    if storage.max_side < 0:
        raise BadRequest(f"max_side must be at least 0, not {storage.max_side}")
    if target.resolve() == Path(source).resolve():
        raise BadRequest(f"cannot pack {shown(source)} into itself: name another folder")


def plan(listing: Listing, target: Path, storage: Storage, shard_images: int) -> list[ShardTask]:
    """The tasks: each takes the next `shard_images` images of a split's storage order."""
    return [
        ShardTask(
            out=str(target),
            split=split,
            number=number,
            first_key=start,
            root=listing.root,
            paths=tuple(images.paths[start : start + shard_images]),
            labels=tuple(images.labels[start : start + shard_images]),
            storage=storage,
        )
        for split, images in listing.splits.items()
        for number, start in enumerate(range(0, len(images.paths), shard_images))
    ]


def digest_of(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def already_packed(target: Path, request: str) -> bool:
    """Whether the target is this very pack; refuses a target that holds something else."""
    if not Dataset.is_packed(target):
        refuse_strangers(target)
        return False
    if Dataset(target).description.get("request") != request:
        raise BadRequest(
            f"{target} holds another packed set (other images or other settings): "
            "name a new folder to pack into, or remove this one"
        )
    clear_up(target)
    return True


def refuse_strangers(target: Path) -> None:
    """Never write among files that are not ours: all that a pack cut short may leave is known."""
    if target.exists() and not target.is_dir():
        raise BadRequest(f"{target} is a file: name a folder to pack into")
    for item in target.rglob("*") if target.is_dir() else ():
        if not OURS.fullmatch(item.relative_to(target).as_posix()):
            raise BadRequest(f"{target} is not empty and not a packed set (it holds {item.name})")


def finish(
    target: Path, listing: Listing, tasks: list[ShardTask], storage: Storage, request: str
) -> None:
    """Join the parts into an index a split, describe the set, commit."""
    splits: dict[str, dict[str, Any]] = {}
    tables: dict[str, pa.Table] = {}
    rejected = []
    for split in listing.splits:
        parts = [pq.read_table(task.part) for task in tasks if task.split == split]
        rows = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
        bad = rows.column("reason").is_valid()
        lost = rows.filter(bad).select(["path", "label", "reason"])
        rejected.append(lost.append_column("split", pa.array([split] * lost.num_rows, pa.string())))
        tables[split] = rows.filter(rows.column("reason").is_null()).drop_columns(["reason"])
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
                for number, part in enumerate(parts)
            ],
        }
    if not splits["train"]["images"]:
        raise BadRequest(
            f"not one image of {shown(listing.root)} could be read: "
            f"{rejected[0].column('reason')[0]} ({rejected[0].column('path')[0]})"
        )
    rejects = pa.concat_tables(rejected)
    write_table(target / "rejected.parquet", rejects)
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
        "report": describe(listing, tables, rejects),
    }
    remove_strays(target, splits)
    write_json(target / "dataset.json", description)
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
