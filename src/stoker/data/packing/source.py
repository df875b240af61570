"""The source of a set: a folder, an archive, a table, shards of another tool or standard input.

Files on a disk are listed, and read where they lie. Everything else is a stream: it arrives in
chunks, and its splits and classes are known at its end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from stoker.commit import sha256_json
from stoker.data.packing.options import PackOptions
from stoker.data.packing.staging import CHUNK_IMAGES, Chunk, in_chunks
from stoker.data.sources.archives import Pipe, images_in, is_archive
from stoker.data.sources.classes import (
    require_archive_classes,
    require_classes,
    require_folder_classes,
)
from stoker.data.sources.download import DownloadLimits, fetch_all
from stoker.data.sources.folder import list_folder, load_walk, save_walk, walk
from stoker.data.sources.item import Item
from stoker.data.sources.labels import refuse_labels
from stoker.data.sources.layout import (
    ByClass,
    Ignored,
    Image,
    Listing,
    arrange,
    by_layout,
    in_number_order,
)
from stoker.data.sources.shards.sample_set import SampleSet, sample_set
from stoker.data.sources.tables import Table, first_labels, open_table, rows, table_files
from stoker.errors import BadRequest
from stoker.text import shown

WEB = ("http://", "https://")
IsStaged = Callable[[int, Chunk], bool]
"""Whether the chunk of this number is staged already."""


@dataclass(frozen=True)
class FileSource:
    """Images in files of their own."""

    root: str
    listing: Listing[str]
    remember: Callable[[], None] = lambda: None
    """Write the cache that spares the next start the walk."""


@dataclass(frozen=True)
class StreamSource:
    """Images that can only be read one after the other."""

    chunks: Callable[[Ignored, IsStaged], Iterator[Chunk]]
    """Reads the stream in chunks, and appends what it passes over to the list."""
    arrange: Callable[[pa.Table, Ignored, float], Listing[int]]
    """Splits and classes from the staged rows, the ignored entries and the share for val."""
    stamp: list[Any] | None
    """Identifies the file, its size, its time and the columns used; None for other streams."""


def open_source(source: str, cache: Path, options: PackOptions) -> FileSource | StreamSource:
    """The source of this name. Raises BadRequest where there is none, or no training image, or
    where its classes cannot have been meant."""
    path = Path(source)
    if source == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise BadRequest("nothing is piped in: curl ... | stoker pack - OUT")
        return archive("standard input", None, options)
    # A folder with a cached walk is no folder of tables: it need not be listed to find out.
    cached = load_walk(source, cache) if path.is_dir() else None
    files = () if cached else table_files(path)
    if files:
        return table_source(open_table(files, dict(options.columns)), source, options)
    if path.is_dir() and not cached and (shards := sample_set(path, dict(options.columns))):
        return shard_source(shards, source, options)
    if path.is_dir():
        files_below = cached or walk(source)
        listing = list_folder(source, options.val_share, files_below)
        require_folder_classes(listing, source, options.allow_one_class)
        return FileSource(
            source, listing, lambda: None if cached else save_walk(source, files_below, cache)
        )
    if path.is_fifo():  # a shell's <(curl ...)
        return replace(archive("the pipe", path, options), stamp=None)
    if path.is_file() and is_archive(path):
        return archive(shown(source), path, options)
    raise BadRequest(
        f"no folder, archive or table at {shown(source)}: expected a folder, a tar or zip, or a "
        "csv, tsv or parquet file"
    )


def stamp_of(path: Path, columns: dict[str, str]) -> list[Any]:
    status, name = path.stat(), os.fsencode(path.resolve()).hex()
    pairs = [list(pair) for pair in sorted(columns.items())]
    return [name, status.st_size, status.st_mtime_ns, pairs]


def archive(name: str, path: Path | None, options: PackOptions) -> StreamSource:
    """A tar or zip, from a file or from standard input."""

    def chunks(ignored: Ignored, is_staged: IsStaged) -> Iterator[Chunk]:
        if path is None:
            yield from in_chunks(images_in(Pipe(sys.stdin.fileno()), name, ignored))
        else:
            with path.open("rb") as file:
                yield from in_chunks(images_in(file, name, ignored))

    def arrange_names(staged: pa.Table, ignored: Ignored, val_share: float) -> Listing[int]:
        names = [os.fsdecode(name) for name in staged.column("name").to_pylist()]
        latest = {path: row for row, path in enumerate(names)}
        replaced = [row for row, path in enumerate(names) if latest[path] != row]
        ignored.extend((shown(names[row]), "again later in the archive") for row in replaced)
        kept = sorted(latest.values())
        rows_of = {
            split: {label: [kept[index] for index in chosen] for label, chosen in classes.items()}
            for split, classes in by_layout([names[row] for row in kept], ignored).items()
        }
        if not rows_of.get("train"):
            raise BadRequest(
                f"no training images in {name}: expected CLASS/*.jpg or train/CLASS/*.jpg in it"
            )
        listing = arrange(name, rows_of, ignored, val_share)
        train = rows_of["train"].values()
        images = [names[row] for members in train for row in members]
        require_archive_classes(listing, images, options.allow_one_class)
        return listing

    return StreamSource(chunks, arrange_names, stamp_of(path, {}) if path else None)


def table_source(table: Table, source: str, options: PackOptions) -> FileSource | StreamSource:
    """Rows with image bytes or URLs are a stream; rows with paths are files. Raises BadRequest
    for labels that are no classes."""
    name = shown(source)
    if not (table.classes or options.whole_labels):
        refuse_labels(first_labels(table), table.columns["label"], source)
    stamp = stamp_of(table.files[0], table.columns) if len(table.files) == 1 else None
    arrange_rows = partial(arrange_staged, name, table, options)
    if table.holds_bytes:
        return StreamSource(lambda ignored, _: in_chunks(rows(table, ignored)), arrange_rows, stamp)
    passed_over: Ignored = []
    listed = list(rows(table, passed_over))
    are_urls = [item.name.startswith(WEB) for item in listed if item.reason is None]
    if any(are_urls):
        if not all(are_urls):
            raise BadRequest(f"{name} mixes paths and URLs: split it into two lists")

        def chunks(ignored: Ignored, is_staged: IsStaged) -> Iterator[Chunk]:
            ignored.extend(passed_over)
            return downloads(listed, is_staged, options.allow_private_addresses)

        return StreamSource(chunks, arrange_rows, stamp)
    paths: ByClass[str] = {}
    for item in listed:
        paths.setdefault(item.split or "", {}).setdefault(item.label or "", []).append(item.name)
    listing = arrange_table(name, paths, passed_over, options.val_share, table)
    require_table_classes(listing, table, options)
    return FileSource(str(table.files[0].parent), listing)


def shard_source(shards: SampleSet, source: str, options: PackOptions) -> StreamSource:
    """The samples of another tool's shards: a stream. Raises BadRequest for labels that are no
    classes, and StokerError where the first shard is damaged."""
    if not options.whole_labels:
        refuse_labels(shards.first_labels(), shards.columns["label"], source)
    table = Table((shards.root,), shards.columns, True, ())
    return StreamSource(
        lambda ignored, _: in_chunks(shards.items(ignored)),
        partial(arrange_staged, shown(source), table, options),
        shards.stamp(),
    )


def arrange_staged(
    name: str,
    table: Table,
    options: PackOptions,
    staged: pa.Table,
    ignored: Ignored,
    val_share: float,
) -> Listing[int]:
    """The listing of staged rows that have a class and a split. Raises BadRequest."""
    rows_of: ByClass[int] = {}
    columns = staged.select(["class_name", "split_name"]).to_pydict()
    for row, (label, split) in enumerate(zip(*columns.values(), strict=True)):
        rows_of.setdefault(split, {}).setdefault(os.fsdecode(label), []).append(row)
    listing = arrange_table(name, rows_of, ignored, val_share, table)
    require_table_classes(listing, table, options)
    return listing


def arrange_table(
    name: str, images: ByClass[Image], ignored: Ignored, val_share: float, table: Table
) -> Listing[Image]:
    """The listing of a table: first the classes that the table itself names, then the others.
    Raises BadRequest without training images."""
    if not images.get("train"):
        raise BadRequest(f"no training images in {name}")
    others = {label for labelled in images.values() for label in labelled} - set(table.classes)
    classes = table.classes + in_number_order(others)
    return arrange(name, images, ignored, val_share, classes)


def require_table_classes(listing: Listing[Any], table: Table, options: PackOptions) -> None:
    """Raise BadRequest where all training images of a table have the same label."""
    advice = f"'{table.columns['label']}' is its label; name another with --columns label=NAME"
    require_classes(listing, lambda: shown(advice), options.allow_one_class)


def downloads(
    listed: list[Item], is_staged: IsStaged, allow_private: bool = False
) -> Iterator[Chunk]:
    """Chunks of a list of URLs. Those that are staged already are not downloaded again."""
    starts = range(0, len(listed), CHUNK_IMAGES)
    rows_of = [tuple(listed[start : start + CHUNK_IMAGES]) for start in starts]
    chunks = [Chunk(items, stamp_of_rows(items), allow_private) for items in rows_of]
    staged = [is_staged(number, chunk) for number, chunk in enumerate(chunks)]
    missing = [chunk for chunk, done in zip(chunks, staged, strict=True) if not done]
    urls = [item.name for chunk in missing for item in chunk.items if item.reason is None]
    # Many at once, so that a host that hangs does not delay the others; bytes have their own limit.
    fetched = fetch_all(urls, DownloadLimits(ahead=1024, allow_private=allow_private))
    for chunk, done in zip(chunks, staged, strict=True):
        if done:
            yield chunk
            continue
        items = []
        for item in chunk.items:
            if item.reason is None:
                answer = next(fetched)
                item = replace(item, data=answer.data, reason=answer.reason, again=answer.temporary)
            items.append(replace(item, name=without_password(item.name)))
        yield replace(chunk, items=tuple(items))


def without_password(url: str) -> str:
    """A URL without its user and password, which must not be stored."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return scheme + mark + host.rpartition("@")[2] + slash + path


def stamp_of_rows(items: tuple[Item, ...]) -> str:
    return sha256_json([[item.name, item.label, item.split, item.reason] for item in items])
