"""A pack into a location of an object store.

Invariants: `dataset.json` is written last, and never over another one where the store keeps to
conditions. The first pack claims the location for its request in `.source.json`: a store has no
lock, so a pack of anything else is refused while the first is unfinished. Packs of the same
request, on any machines, may run at once: they write the same bytes. Before the set is committed
every shard is compared with its part: by size and etag, and by its bytes where these differ.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from stoker.commit import json_bytes, remove
from stoker.data.dataset import Dataset
from stoker.data.packing.shard import Parts, ShardTask
from stoker.data.packing.target.folder import FolderTarget, note_of
from stoker.data.packing.target.part import client_of, holds, part_facts, part_key
from stoker.data.packing.target.scratch import work_folder
from stoker.data.packing.target.target import (
    OWN_FILES,
    SPLITS,
    Note,
    refuse_foreign,
    shards_of,
    tables_of,
)
from stoker.data.seal import SOURCE_CACHE, WALK_CACHE
from stoker.errors import BadRequest, StokerError
from stoker.faults import reach
from stoker.stores.client import StoreClient
from stoker.stores.in_threads import in_threads
from stoker.stores.location import Location
from stoker.stores.objects import Conflict, Found, Missing

THREADS = 8
"""Requests at the same time."""
DELETED_AT_ONCE = 1000


class StoreTarget:
    """A location: a PackTarget. Raises BadRequest for a web server."""

    is_stored = True

    def __init__(self, location: Location) -> None:
        if location.is_web:
            raise BadRequest(
                f"{location} can only be read: name a folder, or a location of s3://, gs:// or "
                "az://"
            )
        self.location = location
        self._is_first = False
        """Whether nothing was here before this pack claimed it."""

    @property
    def name(self) -> str:
        return str(self.location)

    @property
    def out(self) -> str:
        return str(self.location)

    @cached_property
    def work(self) -> Path:
        folder = work_folder(self.location)
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise BadRequest(
                f"{folder} cannot be used ({error.strerror or error}): name a folder on a local "
                "disk in STOKER_CACHE"
            ) from error
        return folder

    @property
    def client(self) -> StoreClient:
        return client_of(self.location)

    @property
    def exists(self) -> bool:
        return bool(self.client.list())

    @property
    def is_packed(self) -> bool:
        return Dataset.is_packed(self.name)

    def require_own(self) -> None:
        names = sorted(self._listing(), key=lambda name: name != "dataset.json")
        refuse_foreign(self.name, iter(names), "location")

    def _listing(self, folder: str = "") -> dict[str, Found]:
        return {entry.key: entry for entry in self.client.list(folder) if entry.key}

    @contextmanager
    def held(self, *, shared: bool = False) -> Iterator[None]:
        """The lock of `work`: other machines have their own."""
        with FolderTarget(self.work).held(shared=shared):
            yield

    def note(self) -> Note:
        try:
            return note_of(self.client.read(SOURCE_CACHE)[0])
        except Missing:
            return {}

    def write_note(self, note: Note) -> None:
        self.client.write(SOURCE_CACHE, json_bytes(note))

    def claim(self, root: str | None, request: str) -> None:
        """Raises BadRequest where it is claimed for another source or request."""
        claim = {"root": root, "request": request}
        data = json_bytes({key: text for key, text in claim.items() if text})
        try:
            if self.client.conditional:
                self.client.create(SOURCE_CACHE, data)
                self._is_first = True
                return
        except Conflict:
            pass
        note = self.note()
        if not note:
            self.client.write(SOURCE_CACHE, data)
            self._is_first = True
        elif note.get("request") != request or note.get("root") != root:
            raise BadRequest(
                f"{self.name} holds unfinished shards of another pack (other images or other "
                "settings): name a new location to pack into; or, if that pack has ended, delete "
                f"{self.name}/{SOURCE_CACHE} and run the same command again"
            )

    def planned(self, tasks: Iterator[ShardTask]) -> Iterator[ShardTask]:
        listing = self._listing()
        for task in tasks:
            stored = listing.get(task.tar_key) if task.part_key in listing else None
            yield replace(task, stored=stored)

    def parts(self, counts: Mapping[str, int]) -> Parts:
        places = FolderTarget(self.work).parts(counts)
        (self.work / ".parts").mkdir(exist_ok=True)
        numbered = [(split, n) for split, count in counts.items() for n in range(count)]
        listing, client = self._listing(), self.client.again()
        fetch = partial(self._fetch_part, client, listing)
        for _ in in_threads(fetch, numbered, THREADS, client.stopped.set):
            pass
        return places

    def _fetch_part(
        self, client: StoreClient, listing: dict[str, Found], numbered: tuple[str, int]
    ) -> None:
        """Download a part, and compare the tar with it. Raises StokerError."""
        split, number = numbered
        key, tar_key = part_key(split, number), f"{split}/{number:05d}.tar"
        path = self.work / key
        path.write_bytes(client.read(key)[0])
        facts = part_facts(pq.read_table(path))
        tar = listing.get(tar_key)
        if tar is None or not (holds(tar, facts) or has_bytes(client, tar, facts)):
            raise StokerError(
                f"{self.name}/{tar_key} was changed during packing: run the same command again"
            )

    def commit(self, description: dict[str, Any]) -> bool:
        names, client = tables_of(description), self.client.again()
        send = partial(self._send_table, client)
        for _ in in_threads(send, names, THREADS, client.stopped.set):
            pass
        listed = {*shards_of(description), *names}
        folders = tuple(f"{split}/" for split in SPLITS)
        names_there = [name for name in self._listing() if name.startswith(folders)]
        self._delete([name for name in names_there if name not in listed])
        reach("set:uploaded")
        data = json_bytes(description)
        try:
            if self.client.conditional:
                self.client.create("dataset.json", data)
            elif self.is_packed:
                return False
            else:
                self.client.write("dataset.json", data)
        except Conflict:
            return False
        reach("set:committed")
        self.clear_up()
        return True

    def _send_table(self, client: StoreClient, name: str) -> None:
        client.upload(name, self.work / name)

    def _delete(self, names: list[str]) -> None:
        for start in range(0, len(names), DELETED_AT_ONCE):
            self.client.delete(names[start : start + DELETED_AT_ONCE])

    def clear_up(self) -> None:
        self._delete([*self._listing(".parts")])
        for path in self.work.iterdir():
            if path.name != WALK_CACHE:
                remove(path)

    def withdraw(self, *, everything: bool) -> None:
        if everything and self._is_first:
            self._delete([name for name in self._listing() if OWN_FILES.fullmatch(name)])
            shutil.rmtree(self.work, ignore_errors=True)


def has_bytes(client: StoreClient, tar: Found, facts: dict[str, str]) -> bool:
    """Whether a tar, which was written again, has the bytes that its part names."""
    digest = hashlib.sha256()
    client.stream(tar.key, tar.bytes, digest.update)
    return digest.hexdigest() == facts.get("sha256")
