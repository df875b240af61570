"""Packing: labelled images from anywhere become shards, an index and a description.

Invariants: `dataset.json` is written last and is the commit of the whole; without it nothing is a
dataset. Shards are committed one by one, so a killed pack goes on where it was. The same images
and the same storage give the same bytes, whatever the source, the number of workers and kills.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from stoker.commit import write_json
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.finish import clear_up, digest_of, finish
from stoker.data.packing.memory import packing_workers
from stoker.data.packing.shard import Files, Inputs, ShardReport, ShardTask, committed, write_shard
from stoker.data.packing.source import FileSource, StreamSource, open_source
from stoker.data.packing.staging import Chunk, Staged, content_of, stage, stage_task
from stoker.data.seal import SOURCE_CACHE, WALK_CACHE
from stoker.data.sources.layout import Ignored, Image, Listing
from stoker.errors import BadRequest, StokerError
from stoker.fleet.workers import map_tasks
from stoker.host.limits import usable_cores, usable_memory
from stoker.text import shown

SHARD_IMAGES = 1000

OURS = re.compile(
    r"\.parts(/.*)?|(.*/)?\.[^/]*\.tmp|(rejected|near_duplicates)\.parquet|\.walk\.parquet|\.source\.json"
    r"|(train|val|test)(/(\d{5,}\.tar|index\.parquet))?"
)
"""Names that a pack leaves in its target before it is committed."""

Progress = Callable[[ShardReport, int, int], None]
"""Called after each piece of work with its report, images done, and images in all (0: unknown)."""


def default_out(source: str) -> Path:
    """Where a source is packed to unless the user says otherwise: beside the caller."""
    if source == "-":
        raise BadRequest("name a folder to pack into: stoker pack - OUT")
    name = Path(source).resolve().name
    for suffix in (".tar.gz", ".tar.bz2", ".tar.xz", ".tgz", ".tar", ".zip", ".csv", ".parquet"):
        name = name.removesuffix(suffix)
    return Path(f"{name}-packed")


def pack(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    storage: Storage | None = None,
    val_share: float = 0.1,
    shard_images: int = SHARD_IMAGES,
    workers: int = 0,
    progress: Progress | None = None,
    columns: dict[str, str] | None = None,
    max_ram: float = 0.0,
    allow_missing: bool = False,
) -> Path:
    """Pack a source; returns the packed dataset's path. Does nothing where it is done already."""
    name = os.fspath(source)
    target = Path(out) if out is not None else default_out(name)
    workers = packing_workers(max_ram, usable_memory(), workers or usable_cores())
    job = Pack(target, storage or Storage(), val_share, shard_images, workers, allow_missing)
    job.storage.check()
    if target.resolve() == Path(name).resolve():
        raise BadRequest(f"cannot pack {shown(name)} into itself: name another folder")
    opened = open_source(name, val_share, columns or {}, target / WALK_CACHE)
    told, was_there = ProgressCounter(progress), target.exists()
    try:
        if isinstance(opened, FileSource):
            job.pack_files(opened, told)
        else:
            job.pack_stream(opened, told)
    except StokerError:
        if not was_there:
            with suppress(OSError):
                target.rmdir()  # where nothing came of it; never what holds anything
        raise
    except OSError as error:
        raise StokerError(
            f"cannot go on packing into {target}: {error.strerror or error}; finished shards are "
            "kept: once it can be written to, the same command goes on"
        ) from error
    return target


class ProgressCounter:
    """Counts what is done for whoever watches."""

    def __init__(self, progress: Progress | None, total: int = 0) -> None:
        self._progress, self.total, self._done = progress, total, 0

    def __call__(self, report: ShardReport) -> None:
        self._done += report.images + report.rejected
        if self._progress:
            self._progress(report, self._done, self.total)


@dataclass(frozen=True)
class Pack:
    """Where and how a source is packed."""

    target: Path
    storage: Storage
    val_share: float
    shard_images: int
    workers: int
    allow_missing: bool

    def pack_files(self, source: FileSource, told: ProgressCounter) -> None:
        """Each shard's task reads the files that belong into it."""
        listing = source.listing

        def tasks() -> Iterator[ShardTask]:
            return self.plan(listing, lambda paths: Files(source.root, tuple(paths)))

        request = digest_of([task.digest() for task in tasks()], listing.classes)
        if already_packed(self.target, request):
            self.refuse_other_root(source.root)
            source.remember()
            return
        self.target.mkdir(parents=True, exist_ok=True)
        with locked(self.target):
            if not already_packed(self.target, request):
                self.begin_anew_unless(source.root)
                source.remember()
                told.total = sum(len(split.labels) for split in listing.splits.values())
                self.write(listing, tasks(), request, told)

    def refuse_other_root(self, root: str) -> None:
        """Files are told by their names alone: those of another folder may be other images."""
        before = self.cached().get("root")
        if before and before != hex_of(root):
            raise BadRequest(
                f"{self.target} was packed from {shown(os.fsdecode(bytes.fromhex(before)))}: name "
                f"a new folder to pack into, or remove {self.target / SOURCE_CACHE} if that has "
                "only moved"
            )

    def begin_anew_unless(self, root: str) -> None:
        """What another folder left behind half done is not built upon."""
        if self.cached().get("root") not in (None, hex_of(root)):
            shutil.rmtree(self.target / ".parts", ignore_errors=True)
        write_json(self.target / SOURCE_CACHE, {"root": hex_of(root)})

    def cached(self) -> dict[str, Any]:
        """What is known of the source that was packed here before."""
        try:
            found = json.loads((self.target / SOURCE_CACHE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def pack_stream(self, source: StreamSource, told: ProgressCounter) -> None:
        """Stage what comes, then copy it together into shards."""
        if not Dataset.is_packed(self.target):
            refuse_strangers(self.target)
        self.target.mkdir(parents=True, exist_ok=True)
        with locked(self.target):
            if Dataset.is_packed(self.target):
                already_packed(self.target, self.request(self.content(source)))
                return
            ignored: Ignored = []
            chunks = source.chunks(ignored, self.staged_already)
            rows, content = stage(chunks, self.target, self.storage, self.workers, told)
            if not self.allow_missing:
                refuse_missing(rows)
            listing = source.arranged(rows, ignored, self.val_share)
            folder = str(self.target / ".parts" / "stage")
            tasks = self.plan(listing, lambda numbers: Staged(folder, rows.take(numbers)))
            self.write(listing, tasks, self.request(content), None)
            cache = {"stamp": source.stamp, "content": content}
            write_json(self.target / SOURCE_CACHE, cache)

    def staged_already(self, number: int, chunk: Chunk) -> bool:
        task = stage_task(self.target, self.storage, number, chunk)
        return committed(task, task.digest()) is not None

    def request(self, content: str) -> str:
        return digest_of(content, asdict(self.storage), self.val_share, self.shard_images)

    def content(self, source: StreamSource) -> str:
        """A hash of all that comes: known where the file is the one packed before, else read."""
        cache = self.cached()
        if source.stamp and cache.get("stamp") == source.stamp and "content" in cache:
            return str(cache["content"])
        chunks = source.chunks([], lambda number, chunk: True)
        return content_of([chunk.digest() for chunk in chunks])

    def plan(
        self, listing: Listing[Image], inputs: Callable[[list[Image]], Inputs]
    ) -> Iterator[ShardTask]:
        """The tasks: each takes the next `shard_images` images of a split's storage order."""
        size = self.shard_images
        for split, images in listing.splits.items():
            for number, start in enumerate(range(0, len(images.images), size)):
                yield ShardTask(
                    out=str(self.target),
                    split=split,
                    number=number,
                    first_key=start,
                    inputs=inputs(images.images[start : start + size]),
                    labels=tuple(images.labels[start : start + size]),
                    storage=self.storage,
                )

    def write(
        self,
        listing: Listing[Image],
        tasks: Iterator[ShardTask],
        request: str,
        told: ProgressCounter | None,
    ) -> None:
        """Do all tasks, then commit."""
        parts: dict[str, list[Path]] = {split: [] for split in listing.splits}

        def noted() -> Iterator[ShardTask]:
            for task in tasks:
                parts[task.split].append(task.part)
                yield task

        with closing(map_tasks(write_shard, noted(), self.workers)) as reports:
            for report in reports:
                if told:
                    told(report)
        finish(self.target, listing, parts, self.storage, request)


def hex_of(root: str) -> str:
    return os.fsencode(Path(root).resolve()).hex()


def refuse_missing(rows: pa.Table) -> None:
    """What failed for now may come with the next try: no set is made without it unasked."""
    failed = rows.filter(rows.column("again"))
    if failed.num_rows:
        raise StokerError(
            f"{failed.num_rows:,} of {rows.num_rows:,} downloads failed for now, such as "
            f"{failed.column('path')[0]} ({failed.column('reason')[0]}): the same command tries "
            "those again; --allow-missing packs without them"
        )


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """One process at a time packs into a folder; others wait and find it done."""
    handle = os.open(target, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


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


def everything_in(folder: Path) -> Iterator[Path]:
    """All files and folders below one, whatever goes away meanwhile."""
    for place, folders, files in os.walk(folder):
        yield from (Path(place) / name for name in [*folders, *files])


def refuse_strangers(target: Path) -> None:
    """Never write among files that are not ours: all that a pack cut short may leave is known."""
    if target.exists() and not target.is_dir():
        raise BadRequest(f"{target} is a file: name a folder to pack into")
    for item in everything_in(target) if target.is_dir() else ():
        if item.name == "dataset.json":
            return  # somebody else has just finished it: that is looked at next
        if not OURS.fullmatch(item.relative_to(target).as_posix()):
            raise BadRequest(f"{target} is not empty and not a packed set (it holds {item.name})")
