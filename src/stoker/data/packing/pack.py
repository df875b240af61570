"""Packing: labelled images from any source become shards, an index and a description.

Invariants: `dataset.json` is written last and commits the whole set; a target without it is not a
set. Each shard is committed by itself, so a pack that was killed continues with the next shard. The
same images and the same storage give the same bytes, for every kind of source, any number of
workers and any number of kills, in a folder and in a store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Unpack

import pyarrow as pa

from stoker.commit import sha256_json
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.index.shard_table import TABLE
from stoker.data.packing.changes import refusal_of
from stoker.data.packing.finish import finish
from stoker.data.packing.memory import packing_workers
from stoker.data.packing.options import PackOptions, PackSettings
from stoker.data.packing.shard import (
    Files,
    Inputs,
    LocalProcesses,
    OnReport,
    ShardReport,
    ShardTask,
    TaskPlace,
    committed_report,
    write_shards,
)
from stoker.data.packing.source import FileSource, StreamSource, open_source
from stoker.data.packing.staging import Chunk, Staged, stage, stage_task
from stoker.data.packing.target.places import target_of
from stoker.data.packing.target.target import PackTarget
from stoker.data.seal import SOURCE_CACHE, WALK_CACHE
from stoker.data.sources.http import PRIVATE_REASONS
from stoker.data.sources.layout import Ignored, Image, Listing, Split
from stoker.errors import BadRequest, StokerError
from stoker.fleet.workers import refuse_repetition
from stoker.host.limits import usable_cores, usable_memory
from stoker.stores.objects import Missing, StoreError
from stoker.text import shown

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
    place: TaskPlace | None = None,
    **options: Unpack[PackSettings],
) -> Path:
    """Pack a source; returns the folder of the packed set. `out` may be a location in a store
    (s3://BUCKET/PREFIX), and then its path is returned, which `Dataset` opens. A set that is
    already complete is left as it is. PackOptions lists the options with their defaults. `place`
    runs the tasks; without one, processes of this machine do.

    Raises BadRequest where a setting, the source or the target is refused, and StokerError where
    the disk or a download fails; the same call then continues after the last finished shard.
    """
    refuse_repetition("stoker.pack")
    name = os.fspath(source)
    target = target_of(out if out is not None else default_out(name))
    settings = PackOptions.of(options)
    cores = settings.workers or usable_cores()
    workers = packing_workers(settings.max_ram, usable_memory(), cores)
    job = PackJob(target, storage or Storage(), settings, place or LocalProcesses(workers))
    job.storage.check()
    refuse_source(name, target)
    images = open_source(name, target.work / WALK_CACHE, settings)
    counter, existed = ProgressCounter(progress), target.exists
    try:
        if isinstance(images, FileSource):
            job.pack_files(images, counter)
        else:
            job.pack_stream(images, counter)
    except StokerError as error:
        if not existed:  # after a bad request, another try will be of another source
            everything = isinstance(error, BadRequest) and not target.is_packed
            target.withdraw(everything=everything)
        if isinstance(error, StoreError):
            kept = f"finished shards are kept in {target.name}: run the same command to continue"
            raise StoreError(f"{error}; {kept}") from error
        raise
    except OSError as error:
        raise StokerError(
            f"cannot write to {target.work}: {error.strerror or error}; finished shards are kept: "
            "make it writable (or free some space), then run the same command to continue"
        ) from error
    return Path(target.name)


def refuse_source(name: str, target: PackTarget) -> None:
    """Raise BadRequest where a source is the target, or a set that only needs to be uploaded."""
    if not target.is_stored and target.work.resolve() == Path(name).resolve():
        raise BadRequest(f"cannot pack {shown(name)} into itself: name another folder")
    tables = (Path(name) / "train" / table for table in ("index.parquet", TABLE))
    if target.is_stored and any(table.is_file() for table in tables):
        raise BadRequest(
            f"{shown(name)} is packed already: 'stoker upload {shown(name)} {target.name}' copies "
            "it there"
        )


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

    target: PackTarget
    storage: Storage
    options: PackOptions
    place: TaskPlace

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
        with self.target.held():
            if not already_packed(self.target, request, self.own_listing(source)):
                self.target.claim(hex_path(source.root), request)
                source.remember()
                counter.total = sum(len(split.labels) for split in listing.splits.values())
                self.write(listing, tasks(), request, counter)

    def own_listing(self, source: FileSource) -> Listing[str] | None:
        """The listing of a source that was packed here before; None for another folder."""
        same = self.target.note().get("root") in (None, hex_path(source.root))
        return source.listing if same else None

    def refuse_other_root(self, root: str) -> None:
        """Raise BadRequest for a set from another folder, where equal names may be other images."""
        packed_root = self.target.note().get("root")
        if packed_root and packed_root != hex_path(root):
            kind = "location" if self.target.is_stored else "folder"
            raise BadRequest(
                f"{self.target.name} was packed from "
                f"{shown(os.fsdecode(bytes.fromhex(packed_root)))}: name a new {kind} to pack "
                f"into, or remove {self.target.name}/{SOURCE_CACHE} if that folder was only moved"
            )

    def pack_stream(self, source: StreamSource, counter: ProgressCounter) -> None:
        """Pack a stream: stage its images in the order they arrive, then copy them into shards."""
        if self.target.is_stored and not isinstance(self.place, LocalProcesses):
            raise BadRequest(
                f"this source is staged on one machine on its way to {self.target.name}: pack it "
                "without --on, or pack into a folder that all machines share"
            )
        if not self.target.is_packed:
            self.target.require_own()
        with self.target.held():
            if self.target.is_packed:
                already_packed(self.target, self.stream_request(self.content_hash(source)))
                return
            ignored: Ignored = []
            chunks = source.chunks(ignored, self.is_staged)
            rows, content = stage(chunks, self.target.work, self.storage, self.place, counter)
            refuse_private(rows)
            if not self.options.allow_missing:
                refuse_missing(rows)
            listing = source.arrange(rows, ignored, self.options.val_share)
            folder, request = str(self.target.work / ".parts/stage"), self.stream_request(content)
            tasks = self.plan(listing, lambda numbers: Staged(folder, rows.take(numbers)))
            self.target.claim(None, request)
            self.write(listing, tasks, request, lambda report: None)
            self.target.write_note({"stamp": source.stamp, "content": content})

    def is_staged(self, number: int, chunk: Chunk) -> bool:
        task = stage_task(self.target.work, self.storage, number, chunk)
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
        cache = self.target.note()
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
                    out=self.target.out,
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
        """Write all shards, then commit the set. Raises BadRequest where another process has made
        the target another set."""
        write_shards(self.target.planned(tasks), self.place, on_report)
        counts = {name: len(self.shard_starts(split)) for name, split in listing.splits.items()}
        least_classes = 1 if self.options.allow_one_class else 2
        try:
            target, storage, place = self.target, self.storage, self.place
            done = finish(target, listing, counts, storage, request, place, least_classes)
        except Missing:
            if not self.target.is_packed:
                raise
            done = False  # by another process, which has removed the parts
        if not done:
            already_packed(self.target, request)


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


def already_packed(target: PackTarget, request: str, listing: Listing[str] | None = None) -> bool:
    """Whether the target is the set of this request. Raises BadRequest for any other content, with
    what has changed where the set was made from this listing's source."""
    if not target.is_packed:
        target.require_own()
        return False
    if Dataset(target.name).description.get("request") != request:
        raise BadRequest(refusal_of(target.name, request, listing))
    target.clear_up()
    return True
