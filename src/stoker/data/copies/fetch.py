"""Filling the cache of this machine with a set in a store, before it is trained from.

Invariants: shards are fetched in the order of the set, as many as the cache may hold, and each is
compared with its hash. A shard that is in the cache is not fetched again. Training runs may use the
same cache and the same set at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from stoker.data.dataset import Dataset
from stoker.data.image_hashes import ByteCounter, Progress
from stoker.data.index.shard_table import rows_files, split_table, table_sha256
from stoker.data.shards import print_note
from stoker.data.stored_set import index_file
from stoker.data.stored_shards import naming
from stoker.errors import StokerError
from stoker.stores.cache import FileCache, NoRoom, Wanted
from stoker.stores.client import StoreClient
from stoker.stores.in_threads import in_threads
from stoker.stores.location import Location
from stoker.stores.patience import Patience

THREADS = 8
"""Shards that are fetched at the same time."""


@dataclass(frozen=True)
class FetchReport:
    """What a cache holds of a set."""

    shards: int
    """Shards of the splits that were asked for."""
    here: int
    """Of these, in the cache at the end."""
    here_bytes: int
    fetched: int
    fetched_bytes: int
    seconds: float
    obstacle: str = ""
    """Why shards are missing, though the cache may be large enough for them."""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a set in a store."""

    key: str
    wanted: Wanted


def fetch(
    dataset: Dataset,
    location: Location,
    cache: FileCache,
    splits: Sequence[str],
    progress: Progress | None = None,
) -> FetchReport:
    """Fetch the shards of some splits of a set into a cache. Raises StokerError where one is
    damaged or missing, and StoreError where the store fails."""
    start, client = time.monotonic(), StoreClient(location, report=print_note)
    shards = shards_of_splits(dataset, splits)
    indexes = [index_of(client, dataset, split) for split in splits]
    room = cache.limit_bytes - sum(index.wanted.bytes for index in indexes)
    fitting = first_fitting(shards, room)
    files = [*indexes, *rows_of(dataset, splits, len(fitting)), *fitting]
    missing = [file for file in files if not is_here(cache, file)]
    counter = ByteCounter(progress, sum(file.wanted.bytes for file in missing))
    obstacle = ""
    try:
        call = partial(get, cache, client, counter)
        for _ in in_threads(call, missing, THREADS, client.stopped.set):
            pass
    except NoRoom as error:
        obstacle = str(error)
    here = [file for file in shards if is_here(cache, file)]
    return FetchReport(
        shards=len(shards),
        here=len(here),
        here_bytes=sum(file.wanted.bytes for file in here),
        fetched=len([file for file in missing if file in here]),
        fetched_bytes=counter.done,
        seconds=time.monotonic() - start,
        obstacle=obstacle,
    )


def shards_of_splits(dataset: Dataset, splits: Sequence[str]) -> list[RemoteFile]:
    """The shards of some splits, in the order of the set."""
    return [
        RemoteFile(f"{split}/{shard['name']}", Wanted(shard["sha256"], int(shard["bytes"])))
        for split in splits
        for shard in dataset.shards(split)
    ]


def index_of(client: StoreClient, dataset: Dataset, split: str) -> RemoteFile:
    """The index of a split, or the table of its shards. Raises StokerError."""
    facts = dataset.description["splits"][split]
    key = f"{split}/{split_table(facts)}"
    return RemoteFile(key, index_file(client, key, table_sha256(facts)))


def rows_of(dataset: Dataset, splits: Sequence[str], shards: int) -> list[RemoteFile]:
    """The rows of the first shards of some splits, where they are in files of their own."""
    files = []
    for split in splits:
        files += [
            RemoteFile(f"{split}/{rows.name}", Wanted(rows.sha256, rows.bytes))
            for rows in islice(rows_files(dataset.shards(split)), max(shards, 0))
        ]
        shards -= len(dataset.shards(split))
    return files


def first_fitting(files: list[RemoteFile], room: int) -> list[RemoteFile]:
    """The first files that fit together into so many bytes."""
    fitting = []
    for file in files:
        room -= file.wanted.bytes
        if room < 0:
            break
        fitting.append(file)
    return fitting


def is_here(cache: FileCache, file: RemoteFile) -> bool:
    """Whether a file is in the cache. It counts as used now, so others are evicted before it."""
    held = cache.held(file.wanted)
    if held is None:
        return False
    held.close()
    return True


def get(cache: FileCache, client: StoreClient, counter: ByteCounter, file: RemoteFile) -> None:
    """Fetch a file into the cache, unless another process does. Raises NoRoom, StokerError."""

    def download(into: Callable[[memoryview], None]) -> None:
        def take(chunk: memoryview) -> None:
            into(chunk)
            counter.add(len(chunk))

        client.stream(file.key, file.wanted.bytes, take)

    place = f"{client.location}/{file.key}"
    try:
        with naming(place):
            cache.fetch(file.wanted, download, Patience(stopped=client.stopped)).close()
    except OSError as error:
        raise StokerError(f"cannot write {place} to the cache {cache.folder}: {error}") from error
