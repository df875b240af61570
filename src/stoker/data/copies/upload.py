"""Uploading a packed set from a folder to a store, as it is.

Invariants: each file is compared with its hash before it is uploaded, and `dataset.json` is
uploaded last. After each file an empty object is written whose key is a hash of the file's hash,
its size and its etag: an upload that was killed knows by one listing what is there, and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.commit import sha256_file, sha256_json, sha256_of
from stoker.data.dataset import Dataset
from stoker.data.image_hashes import ByteCounter, Progress
from stoker.data.index.shard_table import rows_files, split_table, table_sha256
from stoker.data.packing.target.part import plain_etag
from stoker.data.packing.target.stored import StoreTarget
from stoker.data.packing.target.target import tables_of
from stoker.data.seal import SOURCE_CACHE
from stoker.data.stored_set import MOST_BYTES
from stoker.errors import BadRequest, StokerError
from stoker.faults import reach
from stoker.stores.client import StoreClient
from stoker.stores.in_threads import in_threads
from stoker.stores.location import Location
from stoker.stores.objects import Conflict, Version

THREADS = 4
"""Files that are uploaded at the same time; a large one is sent in several parts at once."""
SENT = ".parts/sent"


@dataclass(frozen=True)
class LocalFile:
    """A file of a set in a folder."""

    name: str
    path: Path
    sha256: str
    bytes: int

    def mark(self, version: Version) -> str:
        """The key that says that this file is in the store under this version."""
        facts = [self.name, self.sha256, self.bytes, plain_etag(version)]
        return f"{SENT}/{sha256_json(facts)[:32]}"


def upload(
    path: str | os.PathLike[str], location: Location, progress: Progress | None = None
) -> bool:
    """Upload the packed set of a folder; False where the location holds it already. Raises
    BadRequest where the folder is no set or the location holds anything else, StokerError for a
    damaged file, and StoreError where the store fails; the same call then goes on."""
    dataset, target = Dataset(path), StoreTarget(location)
    if dataset.store:
        raise BadRequest(f"{dataset.name} is not a folder: name a packed set of this machine")
    description = (dataset.path / "dataset.json").read_bytes()
    if is_uploaded(target, description):
        return False
    target.require_own()
    with target.held():
        if is_uploaded(target, description):
            return False
        target.claim(None, f"upload {sha256_of(description)}")
        files = files_in(dataset)
        send_all(files, target.client.again(), progress)
        reach("set:sent")
        commit(target, description)
        reach("set:committed")
        target.clear_up()
        target.client.delete([SOURCE_CACHE])
    return True


def is_uploaded(target: StoreTarget, description: bytes) -> bool:
    """Whether a location holds the set of this description. Raises BadRequest for another set."""
    if not target.is_packed:
        return False
    if target.client.read("dataset.json", MOST_BYTES)[0] != description:
        raise BadRequest(
            f"{target.name} holds another packed set: name a new location, or remove this one"
        )
    return True


def files_in(dataset: Dataset) -> list[LocalFile]:
    """Everything that a description lists, the tables first. Raises StokerError where a file is
    missing."""
    folder, description = dataset.path, dataset.description
    hashes = {f"{split}/{name}": sha256 for split, name, sha256 in split_tables(dataset)}
    for name in tables_of(description):
        hashes.setdefault(name, str(description.get(name.replace(".parquet", "_sha256"))))
    for split in description["splits"]:
        hashes |= {f"{split}/{shard['name']}": shard["sha256"] for shard in dataset.shards(split)}
    rejected = folder / "rejected.parquet"
    if rejected.is_file():  # an old set has no hash of it
        hashes.setdefault(rejected.name, sha256_file(rejected))
    files = []
    for name, sha256 in hashes.items():
        path = folder / name
        if not path.is_file():
            raise StokerError(f"{path} is missing: 'stoker verify {folder}' checks the whole set")
        files.append(LocalFile(name, path, sha256, path.stat().st_size))
    return files


def split_tables(dataset: Dataset) -> Iterator[tuple[str, str, str]]:
    """The tables of the splits: split, name and hash of each."""
    for split, facts in dataset.description["splits"].items():
        yield split, split_table(facts), table_sha256(facts)
        for file in rows_files(dataset.shards(split)):
            yield split, file.name, file.sha256


def send_all(files: list[LocalFile], client: StoreClient, progress: Progress | None) -> None:
    """Upload the files that are not there. Raises StokerError."""
    missing = unsent(files, client)
    counter = ByteCounter(progress, sum(file.bytes for file in missing))
    for _ in in_threads(partial(send, client, counter), missing, THREADS, client.stopped.set):
        pass
    if changed := unsent(files, client):
        raise StokerError(
            f"{client.location}/{changed[0].name} was changed during the upload: run the same "
            "command again"
        )


def unsent(files: list[LocalFile], client: StoreClient) -> list[LocalFile]:
    """The files that are not in the store as they are here."""
    listing = {entry.key: entry for entry in client.list()}
    return [
        file
        for file in files
        if (entry := listing.get(file.name)) is None
        or entry.bytes != file.bytes
        or file.mark(entry.version) not in listing
    ]


def send(client: StoreClient, counter: ByteCounter, file: LocalFile) -> None:
    """Upload a file, and mark it. Raises StokerError where it is damaged."""
    if sha256_file(file.path) != file.sha256:
        raise StokerError(
            f"{file.path} is damaged: its hash is not the one in dataset.json; nothing of it was "
            "uploaded: pack again with 'stoker pack'"
        )
    version = client.upload(file.name, file.path)
    reach("file:uploaded")
    client.write(file.mark(version), b"")
    counter.add(file.bytes)


def commit(target: StoreTarget, description: bytes) -> None:
    """Write the description. Raises BadRequest where there is another one."""
    try:
        if target.client.conditional:
            target.client.create("dataset.json", description)
        elif not is_uploaded(target, description):
            target.client.write("dataset.json", description)
    except Conflict:
        is_uploaded(target, description)
