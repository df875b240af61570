"""The part of a shard: its name, and what it says about its tar.

Invariant: a part is written after its tar and commits it. In a folder it names the hash of the tar;
in a store also the etag that the store gave it, by which the tar is known without being read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pyarrow as pa

from stoker.stores.client import StoreClient
from stoker.stores.location import Location
from stoker.stores.objects import Found, Version


def part_key(split: str, number: int) -> str:
    """The name of a part within the target."""
    return f".parts/{split}-{number:05d}.parquet"


def part_path(out: Path, split: str, number: int) -> Path:
    return out / part_key(split, number)


def part_facts(table: pa.Table) -> dict[str, str]:
    """The metadata of a part: `task`, `inputs`, the shard's `sha256` and `bytes`, and in a store
    the `etag` of its tar."""
    return {name.decode(): text.decode() for name, text in (table.schema.metadata or {}).items()}


def holds(tar: Found, facts: dict[str, str]) -> bool:
    """Whether a tar in a store is the one that a part names, as far as size and etag tell."""
    etag = plain_etag(tar.version)
    return etag != "" and (str(tar.bytes), etag) == (facts.get("bytes"), facts.get("etag"))


def plain_etag(version: Version) -> str:
    """An etag without its quotes, which some stores leave out in some of their answers."""
    return (version.etag or "").strip('"')


@cache
def client_of(location: Location) -> StoreClient:
    """The connection of this process to a location."""
    return StoreClient(location)
