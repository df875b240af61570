"""The rows of the shards of a large split in a store.

Invariants: they come through the cache where there is room, and straight into memory where there is
none. What has another hash than it must have is asked for again; the reader compares it once more.
"""

from __future__ import annotations

import hashlib
import os
from functools import partial

from stoker.data.index.shard_table import RowsFile, ShardTable
from stoker.data.stored_shards import IN_USE, READERS, STOPPED, naming
from stoker.errors import StokerError
from stoker.stores.cache import FileCache, NoRoom, Wanted
from stoker.stores.client import SURE_TRIES, StoreClient
from stoker.stores.patience import Patience, Stopped


class StoredRows:
    """Objects in a store: RowFiles."""

    threads = READERS

    def __init__(
        self, client: StoreClient, cache: FileCache | None, split: str, table: ShardTable
    ) -> None:
        self._client, self._cache, self._split, self._table = client, cache, split, table
        IN_USE.add(self)

    def place(self, number: int) -> str:
        return f"{self._client.location}/{self._key(self._table.rows_file(number))}"

    def _key(self, file: RowsFile) -> str:
        return f"{self._split}/{file.name}"

    def read(self, number: int) -> bytes:
        client, file = self._client, self._table.rows_file(number)
        try:
            with naming(self.place(number)):
                data = self._from_cache(client, file)
                return self._from_store(client, file) if data is None else data
        except Stopped as error:
            raise StokerError(STOPPED) from error

    def _from_cache(self, client: StoreClient, file: RowsFile) -> bytes | None:
        """The bytes of a file, through the cache; None where it cannot be used."""
        if self._cache is None:
            return None
        wanted = Wanted(file.sha256, file.bytes)
        download = partial(client.stream, self._key(file), file.bytes)
        try:
            held = self._cache.fetch(wanted, download, Patience(stopped=client.stopped))
            data = os.pread(held.handle, file.bytes, 0)
            held.close()
            if hashlib.sha256(data).hexdigest() == file.sha256:
                return data
            self._cache.drop(wanted)  # it was damaged after it had arrived
        except (NoRoom, OSError):
            pass
        return None

    def _from_store(self, client: StoreClient, file: RowsFile) -> bytes:
        for _ in range(SURE_TRIES - 1):
            data = client.read(self._key(file), file.bytes)[0]
            if hashlib.sha256(data).hexdigest() == file.sha256:
                return data
        return client.read(self._key(file), file.bytes)[0]

    def abandon(self) -> None:
        """End what waits for the store, for good: the program ends."""
        self._client.stopped.set()

    def close(self) -> None:
        """Rows that are read later are asked for by a new client."""
        self._client.stopped.set()
        self._client = self._client.again()
