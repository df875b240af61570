"""The files of a set as they are stored: read in blocks from a folder, a store or a web server.

Invariants: nothing is written where the set is, and nothing comes from the cache. Each file is read
once. An index in a store is kept in a temporary folder while it is read, because it is looked up
again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from stoker.data.image_hashes import Sink, Unreadable, read_blocks
from stoker.data.index.shard_table import TABLE
from stoker.data.shards import print_note
from stoker.data.stored_set import MOST_BYTES
from stoker.host.limits import usable_cores
from stoker.host.plain_file import read_plain
from stoker.stores.client import StoreClient
from stoker.stores.location import Location, location_of
from stoker.stores.objects import Found, Missing
from stoker.stores.trouble import OddKey

STORE_THREADS = 8
"""Objects that are read at the same time, at least: a request waits more than it computes."""


class SetFiles(Protocol):
    """The files of a set, by their names within it. For a set in a store, each method raises
    StoreError where the store fails."""

    @property
    def threads(self) -> int:
        """How many threads read it well."""

    @property
    def obstacle(self) -> str:
        """Why the files cannot be listed."""

    def description(self) -> bytes:
        """The text of dataset.json."""

    def size_of(self, name: str) -> int:
        """The bytes of a file; 0 where there is none."""

    def read(self, name: str, into: Sink) -> None:
        """Pass a file on in blocks. Raises Unreadable."""

    def path_of(self, name: str) -> Path:
        """An index that was read, as a file of this machine."""

    def names(self) -> Iterator[str] | None:
        """The names of all files; None where they cannot be listed."""

    def stop(self) -> None:
        """End what waits for a store, in other threads."""

    def close(self) -> None:
        """Remove temporary files."""


class FolderFiles:
    """A set in a folder."""

    def __init__(self, root: Path) -> None:
        self._root, self.threads, self.obstacle = root, usable_cores(), ""

    def description(self) -> bytes:
        return read_plain(self._root / "dataset.json", MOST_BYTES)

    def size_of(self, name: str) -> int:
        path = self._root / name
        return path.stat().st_size if path.is_file() else 0

    def read(self, name: str, into: Sink) -> None:
        read_blocks(self._root / name, into)

    def path_of(self, name: str) -> Path:
        return self._root / name

    def names(self) -> Iterator[str]:
        for folder, _, names in os.walk(self._root):
            below = Path(folder).relative_to(self._root)
            yield from sorted((below / name).as_posix() for name in names)

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


class StoredFiles:
    """A set in a store or on a web server."""

    def __init__(self, location: Location) -> None:
        self._client = StoreClient(location, report=print_note)
        self.threads = max(usable_cores(), STORE_THREADS)
        self._folder = tempfile.TemporaryDirectory(prefix="stoker-verify-")
        self._listing: dict[str, Found] | None = None
        self.obstacle = "a web server does not list its files" if location.is_web else ""

    def description(self) -> bytes:
        return self._client.read("dataset.json", MOST_BYTES)[0]

    def _found(self, name: str) -> Found | None:
        listing = self._listed()
        return self._client.find(name) if listing is None else listing.get(name)

    def _listed(self) -> dict[str, Found] | None:
        """The objects by key; None where they cannot be listed."""
        if self._listing is None and not self.obstacle:
            try:
                self._listing = {entry.key: entry for entry in self._client.list()}
            except OddKey as error:
                self.obstacle = str(error)
        return self._listing

    def size_of(self, name: str) -> int:
        entry = self._found(name)
        return entry.bytes if entry else 0

    def read(self, name: str, into: Sink) -> None:
        entry = self._found(name)
        if entry is None:
            raise Unreadable("missing")
        if name.endswith(("/index.parquet", f"/{TABLE}")):
            path = self.path_of(name)
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                self._stream(entry, both(into, file.write))
        else:
            self._stream(entry, into)

    def _stream(self, entry: Found, into: Sink) -> None:
        try:
            self._client.stream(entry.key, entry.bytes, into)
        except Missing as error:
            raise Unreadable("missing") from error

    def path_of(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def names(self) -> Iterator[str] | None:
        listing = self._listed()
        return None if listing is None else iter(listing)

    def stop(self) -> None:
        self._client.stopped.set()

    def close(self) -> None:
        self._folder.cleanup()


def both(one: Sink, other: Callable[[memoryview], object]) -> Sink:
    """Passes each block on twice."""

    def take(block: memoryview) -> None:
        one(block)
        other(block)

    return take


def files_of(path: str | os.PathLike[str]) -> SetFiles:
    """The files of the set in a folder or at a location. Raises BadRequest."""
    location = location_of(path)
    return StoredFiles(location) if location else FolderFiles(Path(path))
