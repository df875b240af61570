"""What Stoker asks of an object store: few requests, each of which may fail, be late or repeated.

Invariants: an object is read whole as it was written, or not at all. `create` and `replace` change
nothing where their condition does not hold; a store that cannot promise that has `conditional` set
to False, and then neither is called. A key is a relative path with `/` between its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stoker.errors import StokerError
from stoker.text import shown


class StoreError(StokerError):
    """A store that did not do what was asked: what happened, and what to do."""


class Missing(StoreError):
    """There is no object of this key."""


class Conflict(StoreError):
    """The condition of a write does not hold: another process was first."""


class Denied(StoreError):
    """The store knows no such bucket, or does not accept these credentials."""


@dataclass(frozen=True, slots=True)
class Version:
    """Identifies what an object held when it was read or written."""

    etag: str | None
    number: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """An object of a listing."""

    key: str
    bytes: int
    version: Version


class Objects(Protocol):
    """The objects under one location. Each method raises StoreError where the store fails for
    longer than it is patient with, and Denied at once."""

    @property
    def location(self) -> str:
        """The location as a user writes it, for messages."""

    @property
    def conditional(self) -> bool:
        """Whether the store keeps to the conditions of `create` and `replace`: tried, not believed.
        The first call writes an object."""

    def read(self, key: str, most_bytes: int = 1 << 28) -> tuple[bytes, Version]:
        """A small object and its version. Raises Missing."""

    def stream(self, key: str, length: int, into: Callable[[memoryview], None]) -> None:
        """Pass a large object of this length on in chunks. Raises Missing."""

    def find(self, key: str) -> Found | None:
        """Size and version of an object; None where there is none."""

    def list(self, prefix: str = "") -> list[Found]:
        """The objects below a folder (all: empty), sorted by key."""

    def write(self, key: str, data: bytes) -> Version:
        """Write a small object, also over another one."""

    def create(self, key: str, data: bytes) -> Version:
        """Write a small object. Raises Conflict where there is one of this key."""

    def replace(self, key: str, data: bytes, version: Version) -> Version:
        """Write over the object of this version. Raises Conflict where it is not of it."""

    def upload(self, key: str, path: Path) -> Version:
        """Write a file of any size as an object."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that do not exist are passed over."""


MOST_LISTED = 3_000_000
"""Objects of a listing: more than the largest set has, in less than 2 GB of memory."""
MOST_KEY_BYTES = 1 << 29
"""Of all keys of a listing together."""


def listed(pages: Iterable[Sequence[Any]], place: str) -> list[Found]:
    """The objects of a listing, sorted by key. Raises StoreError for one that comes to no end."""
    entries: dict[str, Found] = {}
    key_bytes, place = 0, shown(place.rstrip("/"))
    for page in pages:
        before = len(entries)
        for meta in page:
            key = meta["path"]
            key_bytes += len(key)
            entries[key] = Found(key, int(meta["size"]), version_of(meta))
        if page and len(entries) == before:
            raise StoreError(f"{place}: the listing repeats itself: check the server")
        if len(entries) > MOST_LISTED or key_bytes > MOST_KEY_BYTES:
            raise StoreError(
                f"{place}: the listing has no end after {len(entries):,} objects: name a "
                "location of its own for each set and run, or check the server"
            )
    return [entries[key] for key in sorted(entries)]


def version_of(meta: Any) -> Version:
    return Version(meta.get("e_tag") or None, meta.get("version"))
