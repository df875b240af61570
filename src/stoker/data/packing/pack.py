"""Packing: labelled images from any source become shards, an index and a description.

Invariants: `dataset.json` is written last and commits the whole set; a folder without it is not a
set. Each shard is committed by itself, so a pack that was killed continues with the next shard. The
same images and the same storage give the same bytes, for every kind of source, any number of
workers and any number of kills.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import pyarrow as pa

from stoker.commit import UNABLE, sha256_json, write_json
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.packing.changes import refusal_of
from stoker.data.packing.finish import clear_up, finish
from stoker.data.packing.memory import packing_workers
from stoker.data.packing.options import PackOptions, PackSettings
from stoker.data.packing.shard import (
    Files,
    Inputs,
    OnReport,
    ShardReport,
    ShardTask,
    committed_report,
    write_shards,
)
from stoker.data.packing.source import FileSource, StreamSource, open_source
from stoker.data.packing.staging import Chunk, Staged, stage, stage_task
from stoker.data.seal import SOURCE_CACHE, WALK_CACHE
from stoker.data.sources.http import PRIVATE_REASONS
from stoker.data.sources.layout import Ignored, Image, Listing, Split
from stoker.errors import BadRequest, StokerError
from stoker.fleet.workers import refuse_repetition
from stoker.host.limits import usable_cores, usable_memory
from stoker.text import shown

OWN_FILES = re.compile(
    r"\.parts(/.*)?|(.*/)?\.[^/]*\.tmp|(rejected|near_duplicates)\.parquet|\.walk\.parquet|\.source\.json"
    r"|(train|val|test)(/(\d{5,}\.tar|index\.parquet))?"
)
"""Names that a pack leaves in its target before it is committed."""

Progress = Callable[[ShardReport, int, int], None]
"""Called after each task with its report, the images done, and the images in all (0: unknown)."""


def default_out(source: str) -> Path:
    """SOURCE-packed, in the working directory. Raises BadRequest for standard input."""
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
    progress: Progress | None = None,
    **options: Unpack[PackSettings],
) -> Path:
    """Pack a source; returns the folder of the packed set. A set that is already complete is left
    as it is. PackOptions lists the options with their defaults.

    Raises BadRequest where a setting, the source or the target is refused, and StokerError where
    the disk or a download fails; the same call then continues after the last finished shard.
    """
    refuse_repetition("stoker.pack")
    name = os.fspath(source)
    target = Path(out) if out is not None else default_out(name)
    settings = PackOptions.of(options)
    workers = packing_workers(settings.max_ram, usable_memory(), settings.workers or usable_cores())
    job = PackJob(target, storage or Storage(), settings, workers)
    job.storage.check()
    if target.resolve() == Path(name).resolve():
        raise BadRequest(f"cannot pack {shown(name)} into itself: name another folder")
    images = open_source(name, target / WALK_CACHE, settings)
    counter, existed = ProgressCounter(progress), target.exists()
    try:
        if isinstance(images, FileSource):
            job.pack_files(images, counter)
        else:
            job.pack_stream(images, counter)
    except StokerError as error:
        if not existed and isinstance(error, BadRequest) and not Dataset.is_packed(target):
            shutil.rmtree(target, ignore_errors=True)  # another try will be of another source
        elif not existed:
            with suppress(OSError):
                target.rmdir()  # only succeeds where it is empty
        raise
    except OSError as error:
        raise StokerError(
            f"cannot write to {target}: {error.strerror or error}; finished shards are kept: make "
            "it writable (or free some space), then run the same command to continue"
        ) from error
    return target


class ProgressCounter:
    """Adds up the reports of the tasks and passes the sum to a progress callback."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self.total, self._done = progress, 0, 0

    def __call__(self, report: ShardReport) -> None:
        self._done += report.images + report.rejected
        if self._progress:
            self._progress(report, self._done, self.total)


@dataclass(frozen=True)
class PackJob:
    """One pack: its target and its settings."""

    target: Path
    storage: Storage
    options: PackOptions
    workers: int

    def pack_files(self, source: FileSource, counter: ProgressCounter) -> None:
        """Pack files on a disk: the task of each shard reads its own files."""
        listing = source.listing

        def tasks() -> Iterator[ShardTask]:
            return self.plan(listing, lambda paths: Files(source.root, tuple(paths)))

        request = sha256_json([[task.digest() for task in tasks()], listing.classes])
        if already_packed(self.target, request, self.own_listing(source)):
            self.refuse_other_root(source.root)
            source.remember()
            return
        self.target.mkdir(parents=True, exist_ok=True)
        with locked(self.target):
            if not already_packed(self.target, request, self.own_listing(source)):
                self.claim_for(source.root)
                source.remember()
                counter.total = sum(len(split.labels) for split in listing.splits.values())
                self.write(listing, tasks(), request, counter)

    def own_listing(self, source: FileSource) -> Listing[str] | None:
        """The listing of a source that was packed here before; None for another folder."""
        same = self.source_cache().get("root") in (None, hex_path(source.root))
        return source.listing if same else None

    def refuse_other_root(self, root: str) -> None:
        """Raise BadRequest for a set from another folder, where equal names may be other images."""
        packed_root = self.source_cache().get("root")
        if packed_root and packed_root != hex_path(root):
            raise BadRequest(
                f"{self.target} was packed from "
                f"{shown(os.fsdecode(bytes.fromhex(packed_root)))}: name a new folder to pack "
                f"into, or remove {self.target / SOURCE_CACHE} if that folder was only moved"
            )

    def claim_for(self, root: str) -> None:
        """Remove the unfinished shards of another folder, and note this folder as the source."""
        if self.source_cache().get("root") not in (None, hex_path(root)):
            shutil.rmtree(self.target / ".parts", ignore_errors=True)
        write_json(self.target / SOURCE_CACHE, {"root": hex_path(root)})

    def source_cache(self) -> dict[str, Any]:
        """The note on the source that was packed here before; empty where there is none."""
        try:
            cache = json.loads((self.target / SOURCE_CACHE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return cache if isinstance(cache, dict) else {}

    def pack_stream(self, source: StreamSource, counter: ProgressCounter) -> None:
        """Pack a stream: stage its images in the order they arrive, then copy them into shards."""
        if not Dataset.is_packed(self.target):
            refuse_foreign_files(self.target)
        self.target.mkdir(parents=True, exist_ok=True)
        with locked(self.target):
            if Dataset.is_packed(self.target):
                already_packed(self.target, self.stream_request(self.content_hash(source)))
                return
            ignored: Ignored = []
            chunks = source.chunks(ignored, self.is_staged)
            rows, content = stage(chunks, self.target, self.storage, self.workers, counter)
            refuse_private(rows)
            if not self.options.allow_missing:
                refuse_missing(rows)
            listing = source.arrange(rows, ignored, self.options.val_share)
            folder = str(self.target / ".parts" / "stage")
            tasks = self.plan(listing, lambda numbers: Staged(folder, rows.take(numbers)))
            self.write(listing, tasks, self.stream_request(content), lambda report: None)
            write_json(self.target / SOURCE_CACHE, {"stamp": source.stamp, "content": content})

    def is_staged(self, number: int, chunk: Chunk) -> bool:
        task = stage_task(self.target, self.storage, number, chunk)
        return committed_report(task, task.digest()) is not None

    def stream_request(self, content: str) -> str:
        """The hash that identifies a pack of a stream with this content."""
        options = self.options
        settings = [content, asdict(self.storage), options.val_share, options.shard_images]
        # Only where it is on, so that sets that were packed before the flag existed are known.
        private = ["private"] if options.allow_private_addresses else []
        return sha256_json([*settings, *private])

    def content_hash(self, source: StreamSource) -> str:
        """A hash of the whole stream, read from the cache where the file has not changed."""
        cache = self.source_cache()
        if source.stamp and cache.get("stamp") == source.stamp and "content" in cache:
            return str(cache["content"])
        chunks = source.chunks([], lambda number, chunk: True)
        return sha256_json([chunk.digest() for chunk in chunks])

    def plan(
        self, listing: Listing[Image], inputs: Callable[[list[Image]], Inputs]
    ) -> Iterator[ShardTask]:
        """The tasks: each takes the next `shard_images` images of a split's storage order."""
        for split, images in listing.splits.items():
            for number, start in enumerate(self.shard_starts(images)):
                end = start + self.options.shard_images
                yield ShardTask(
                    out=str(self.target),
                    split=split,
                    number=number,
                    first_key=start,
                    inputs=inputs(images.images[start:end]),
                    labels=tuple(images.labels[start:end]),
                    storage=self.storage,
                )

    def shard_starts(self, split: Split[Image]) -> range:
        return range(0, len(split.images), self.options.shard_images)

    def write(
        self, listing: Listing[Image], tasks: Iterator[ShardTask], request: str, on_report: OnReport
    ) -> None:
        """Write all shards, then commit the set."""
        write_shards(tasks, self.workers, on_report)
        counts = {name: len(self.shard_starts(split)) for name, split in listing.splits.items()}
        least_classes = 1 if self.options.allow_one_class else 2
        finish(self.target, listing, counts, self.storage, request, least_classes)


def hex_path(root: str) -> str:
    """An absolute path as hex digits: JSON has no text for names that are not UTF-8."""
    return os.fsencode(Path(root).resolve()).hex()


def refuse_private(rows: pa.Table) -> None:
    """Raise BadRequest where every download was refused for its address."""
    if rows.num_rows and set(rows.column("reason").to_pylist()) <= set(PRIVATE_REASONS):
        raise BadRequest(
            f"every URL, for example {rows.column('path')[0]}, leads to a private or local "
            "address: if that is meant, add --allow-private-addresses to stoker pack"
        )


def refuse_missing(rows: pa.Table) -> None:
    """Raise StokerError where a download failed in a way that another try may mend."""
    failed = rows.filter(rows.column("again"))
    if failed.num_rows:
        raise StokerError(
            f"{failed.num_rows:,} of {rows.num_rows:,} downloads failed, for example "
            f"{failed.column('path')[0]} ({failed.column('reason')[0]}): run the same command to "
            "try those again, or add --allow-missing to pack without them"
        )


@contextmanager
def locked(target: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a target: one process at a time packs into it, others wait. Those that share
    it write different shards. A mount without locks has none."""
    handle = os.open(target, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (*UNABLE, errno.ENOLCK):
                raise
        yield
    finally:
        os.close(handle)


def already_packed(target: Path, request: str, listing: Listing[str] | None = None) -> bool:
    """Whether the target is the set of this request. Raises BadRequest for any other content, with
    what has changed where the set was made from this listing's source."""
    if not Dataset.is_packed(target):
        refuse_foreign_files(target)
        return False
    if Dataset(target).description.get("request") != request:
        raise BadRequest(refusal_of(target, request, listing))
    clear_up(target)
    return True


def refuse_foreign_files(target: Path) -> None:
    """Raise BadRequest where a target holds files that no unfinished pack can have left."""
    if target.exists() and not target.is_dir():
        raise BadRequest(f"{target} is a file: name a folder to pack into")
    for folder, folders, files in os.walk(target):
        for name in [*folders, *files]:
            if name == "dataset.json":
                return  # another process has just finished the set: the caller looks again
            if not OWN_FILES.fullmatch((Path(folder) / name).relative_to(target).as_posix()):
                raise BadRequest(
                    f"{target} is neither empty nor a packed set (it holds {name}): "
                    "name a new folder to pack into"
                )
