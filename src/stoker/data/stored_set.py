"""A packed set in an object store or on a web server.

Invariants: the description is read from the store each time a set is opened. It has a seal, and
everything else has a hash in it; what does not match is read again before it counts as damaged.
Index and shards come through the cache; without a cache of shards the index is still kept there. A
set that is opened in several processes of a machine is fetched once.
"""

from __future__ import annotations

import json
import os
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from stoker.data.index.shard_table import ShardTable
from stoker.data.seal import seal_holds
from stoker.data.shards import print_note
from stoker.data.stored_rows import StoredRows
from stoker.data.stored_shards import SENT_AGAIN, Source, StoredShards, naming
from stoker.errors import StokerError
from stoker.stores.cache import FileCache, HeldFile, Wanted
from stoker.stores.client import SURE_TRIES, StoreClient
from stoker.stores.location import Location
from stoker.stores.settings import note_named, open_cache

MOST_BYTES = 160 << 20
"""Of a description, in a folder too; one that lists a million shards has 150 MB."""
TRAIN_SHARE = 0.8
"""Of the cache, for the shards of train that are in use or fetched ahead; the rest for others."""


class StoredSet:
    """A set under a location. Each split has requests of its own, so that one can be stopped."""

    def __init__(self, location: Location) -> None:
        self.location = location

    @property
    def exists(self) -> bool:
        """Whether there is a description. Raises StoreError where the store does not answer."""
        return self._client().find("dataset.json") is not None

    def _client(self) -> StoreClient:
        return StoreClient(self.location, report=print_note)

    def description(self) -> bytes:
        """The text of the description: read again where it is damaged, and returned as it is after
        a few tries. Raises Missing, or StoreError."""
        note_named(self.location)
        client = self._client()
        for _ in range(SURE_TRIES - 1):
            text = client.read("dataset.json", MOST_BYTES)[0]
            if is_unchanged(text):
                return text
        return client.read("dataset.json", MOST_BYTES)[0]

    @cached_property
    def cache(self) -> FileCache:
        return open_cache()

    def split(self, name: str, facts: dict[str, Any]) -> tuple[Path, StoredShards]:
        """The index of a split, as a file of the cache, and its shards."""
        client = self._client()
        index, held = self.file(client, f"{name}/index.parquet", facts["index_sha256"])
        return index, StoredShards(self._source(client, name, held), facts["shards"])

    def table(self, key: str, sha256: str) -> bytes:
        """The bytes of a table, through the cache. Raises StokerError where it is missing or
        damaged."""
        path, held = self.file(self._client(), key, sha256)
        try:
            return path.read_bytes()
        finally:
            held.close()

    def parted_split(self, name: str, table: ShardTable) -> tuple[StoredRows, StoredShards]:
        """The rows of a large split, and its shards."""
        client = self._client()
        cache = self.cache if self.cache.limit_bytes else None
        shards = StoredShards(self._source(client, name), table)
        return StoredRows(self._client(), cache, name, table), shards

    def _source(self, client: StoreClient, name: str, index: HeldFile | None = None) -> Source:
        ranks_here = (
            int(text) if (text := os.environ.get("LOCAL_WORLD_SIZE", "")).isdecimal() else 1
        )
        share = TRAIN_SHARE if name == "train" else 1 - TRAIN_SHARE
        limit = self.cache.limit_bytes
        share_bytes = int(share * limit / max(ranks_here, 1))
        return Source(client, self.cache if limit else None, name, share_bytes, index)

    def file(self, client: StoreClient, key: str, sha256: str) -> tuple[Path, HeldFile]:
        """A file of the set, in the cache while it is held. Raises StokerError where it is missing
        or damaged."""
        try:
            wanted = index_file(client, key, sha256)
            with naming(f"{self.location}/{key}"):
                held = self.cache.fetch(wanted, partial(client.stream, key, wanted.bytes))
        except OSError as error:
            raise StokerError(
                f"cannot write {self.location}/{key} to the cache {self.cache.folder} "
                f"({error.strerror or error}): name a folder on a local disk in STOKER_CACHE"
            ) from error
        return self.cache.path_of(wanted), held


def index_file(client: StoreClient, key: str, sha256: str) -> Wanted:
    """An index as a file of the cache, without which nothing works. Raises StokerError where the
    store has none."""
    entry = client.find(key, SURE_TRIES)
    if entry is None:
        raise StokerError(f"{client.location}/{key} is missing: {SENT_AGAIN}")
    return Wanted(sha256, entry.bytes, needed=True)


def is_unchanged(text: bytes) -> bool:
    """Whether a description matches its seal, or was written before seals existed."""
    try:
        description = json.loads(text.decode())
    except (ValueError, RecursionError):
        return False
    return isinstance(description, dict) and seal_holds(description)
