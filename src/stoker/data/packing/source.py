"""What a user names as the source of a set: a folder, an archive, a table, standard input.

Files that lie on a disk are listed and read where they lie. Everything else is a stream: it comes
in chunks, and which images belong to which class is known when it has ended.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from stoker.data.packing.staging import CHUNK_IMAGES, Chunk, in_chunks
from stoker.data.sources.archives import Pipe, images_in, is_archive
from stoker.data.sources.download import DownloadLimits, fetch_all
from stoker.data.sources.folder import list_folder, load_walk, save_walk, walk
from stoker.data.sources.item import Item
from stoker.data.sources.layout import (
    ByClass,
    Ignored,
    Image,
    Listing,
    arrange,
    by_layout,
    in_number_order,
)
from stoker.data.sources.tables import Table, open_table, rows, table_files
from stoker.errors import BadRequest
from stoker.text import shown

WEB = ("http://", "https://")
Committed = Callable[[int, Chunk], bool]
"""Whether the chunk of this number is staged already."""


@dataclass(frozen=True)
class FileSource:
    """Images in files of their own."""

    root: str
    listing: Listing[str]
    remember: Callable[[], None] = lambda: None
    """Keep what was listed for the next start."""


@dataclass(frozen=True)
class StreamSource:
    """Images that come one after the other."""

    name: str
    chunks: Callable[[Ignored, Committed], Iterator[Chunk]]
    """What comes, a few images at a time; what was passed over is noted on the way."""
    arranged: Callable[[pa.Table, Ignored, float], Listing[int]]
    """Splits and classes, told from the rows that were staged."""
    stamp: list[Any] | None
    """What tells the file that it comes from and the way it is read, if there is one."""


def open_source(
    source: str, val_share: float, columns: dict[str, str], cache: Path
) -> FileSource | StreamSource:
    """Look at what the user named."""
    path = Path(source)
    if source == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise BadRequest("nothing is piped in: curl ... | stoker pack - OUT")
        return archive("standard input", None)
    # A folder whose walk was kept is no table: nothing has to be listed to know that.
    known = load_walk(source, cache) if path.is_dir() else None
    files = () if known else table_files(path)
    if files:
        return table_source(open_table(files, columns), source, val_share)
    if path.is_dir():
        seen = known or walk(source)
        listing = list_folder(source, val_share, seen)
        return FileSource(
            source, listing, lambda: None if known else save_walk(source, seen, cache)
        )
    if path.is_fifo():  # <(curl ...) of a shell
        return replace(archive("the pipe", path), stamp=None)
    if path.is_file() and is_archive(path):
        return archive(shown(source), path)
    raise BadRequest(
        f"no folder, archive or table at {shown(source)}: expected a folder, a tar or zip, or a "
        "csv, tsv or parquet file"
    )


def stamp_of(path: Path, columns: dict[str, str]) -> list[Any]:
    facts = path.stat()
    name = os.fsencode(path.resolve()).hex()
    return [
        name,
        facts.st_size,
        facts.st_mtime_ns,
        [list(pair) for pair in sorted(columns.items())],
    ]


def archive(name: str, path: Path | None) -> StreamSource:
    """A tar or zip, from a file or from standard input."""

    def chunks(ignored: Ignored, committed: Committed) -> Iterator[Chunk]:
        if path is None:
            yield from in_chunks(images_in(Pipe(sys.stdin.fileno()), name, ignored))
        else:
            with path.open("rb") as file:
                yield from in_chunks(images_in(file, name, ignored))

    def arranged(staged: pa.Table, ignored: Ignored, val_share: float) -> Listing[int]:
        names = [os.fsdecode(name) for name in staged.column("name").to_pylist()]
        latest = {path: row for row, path in enumerate(names)}
        again = [row for row, path in enumerate(names) if latest[path] != row]
        ignored.extend((shown(names[row]), "again later in the archive") for row in again)
        kept = sorted(latest.values())
        found = by_layout([names[row] for row in kept], ignored)
        in_place = {
            split: {label: [kept[row] for row in chosen] for label, chosen in labelled.items()}
            for split, labelled in found.items()
        }
        if not in_place.get("train"):
            raise BadRequest(
                f"no training images in {name}: expected CLASS/*.jpg or train/CLASS/*.jpg in it"
            )
        return arrange(name, in_place, ignored, val_share)

    return StreamSource(name, chunks, arranged, stamp_of(path, {}) if path else None)


def table_source(table: Table, source: str, val_share: float) -> FileSource | StreamSource:
    """Rows with image bytes or URLs are a stream; rows with paths are files."""
    name = shown(source)
    stamp = stamp_of(table.files[0], table.columns) if len(table.files) == 1 else None

    def arranged(staged: pa.Table, ignored: Ignored, val_share: float) -> Listing[int]:
        found: ByClass[int] = {}
        columns = staged.select(["class_name", "split_name"]).to_pydict()
        for row, (label, split) in enumerate(zip(*columns.values(), strict=True)):
            found.setdefault(split, {}).setdefault(os.fsdecode(label), []).append(row)
        return arrange_table(name, found, ignored, val_share, table.classes)

    if table.holds_bytes:
        return StreamSource(
            name, lambda ignored, _: in_chunks(rows(table, ignored)), arranged, stamp
        )
    passed_over: Ignored = []
    listed = list(rows(table, passed_over))
    on_the_web = [item.name.startswith(WEB) for item in listed if item.reason is None]
    if any(on_the_web):
        if not all(on_the_web):
            raise BadRequest(f"{name} mixes paths and URLs: split it into two lists")

        def chunks(ignored: Ignored, committed: Committed) -> Iterator[Chunk]:
            ignored.extend(passed_over)
            return downloads(listed, committed)

        return StreamSource(name, chunks, arranged, stamp)
    paths: ByClass[str] = {}
    for item in listed:
        paths.setdefault(item.split or "", {}).setdefault(item.label or "", []).append(item.name)
    listing = arrange_table(name, paths, passed_over, val_share, table.classes)
    return FileSource(str(table.files[0].parent), listing)


def arrange_table(
    name: str,
    found: ByClass[Image],
    ignored: Ignored,
    val_share: float,
    classes: tuple[str, ...],
) -> Listing[Image]:
    if not found.get("train"):
        raise BadRequest(f"no training images in {name}")
    met = {label for labelled in found.values() for label in labelled}
    return arrange(name, found, ignored, val_share, classes + in_number_order(met - set(classes)))


def downloads(listed: list[Item], committed: Committed) -> Iterator[Chunk]:
    """Chunks of a list of URLs: those that are staged already are not fetched again."""
    coming = iter(listed)
    chunks = list(iter(lambda: tuple(islice(coming, CHUNK_IMAGES)), ()))
    known = [Chunk(chunk, stamp_of_rows(chunk)) for chunk in chunks]
    done = [committed(number, chunk) for number, chunk in enumerate(known)]
    waiting = [chunk for chunk, there in zip(chunks, done, strict=True) if not there]
    urls = [item.name for chunk in waiting for item in chunk if item.reason is None]
    # Far ahead in number: one host that hangs must not hold up all others. Bytes have a bound of
    # their own.
    fetched = fetch_all(urls, DownloadLimits(ahead=1024))
    for chunk, there in zip(known, done, strict=True):
        if there:
            yield chunk
            continue
        items = []
        for item in chunk.items:
            if item.reason is None:
                came = next(fetched)
                item = replace(item, data=came.data, reason=came.reason, again=came.temporary)
            items.append(replace(item, name=without_password(item.name)))
        yield replace(chunk, items=tuple(items))


def without_password(url: str) -> str:
    """A URL as it may be written down."""
    scheme, mark, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return scheme + mark + place.rpartition("@")[2] + slash + path


def stamp_of_rows(items: tuple[Item, ...]) -> str:
    what = [[item.name, item.label, item.split, item.reason] for item in items]
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()
