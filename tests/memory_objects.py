"""An object store in memory (`stoker.stores.objects.Objects`), with faults by a table.

Invariants: requests of several threads happen one after the other. As on S3, a version is a hash of
the bytes: an object that is written again as it was has its earlier version again. A request that
fails has changed nothing, unless its fault says that it was applied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TypeVar

from stoker.commit import sha256_of
from stoker.stores.objects import Conflict, Found, Missing, StoreError, Version

Answer = TypeVar("Answer")


def version_of(data: bytes) -> Version:
    """The version that a store gives these bytes."""
    return Version(sha256_of(data)[:32])


@dataclass
class Fault:
    """What happens to the next requests that match, in place of an answer."""

    method: str
    """Such as `read`; a pattern, as is `key`."""
    key: str = "*"
    times: int = 1
    after: int = 0
    """So many matching requests are answered before the first one that fails."""
    applied: bool = False
    """Whether the store does what was asked; only the answer is lost."""
    error: StoreError = field(
        default_factory=lambda: StoreError("the store does not answer: try again later")
    )

    def strikes(self, method: str, key: str) -> bool:
        """Whether this request fails. Counts it."""
        if self.times < 1 or not (fnmatchcase(method, self.method) and fnmatchcase(key, self.key)):
            return False
        self.after -= 1
        if self.after >= 0:
            return False
        self.times -= 1
        return True


class MemoryObjects:
    """Objects by key. `faults` may be added to at any time; the first that matches counts."""

    def __init__(
        self, *faults: Fault, conditional: bool = True, location: str = "memory://bucket/run"
    ) -> None:
        self.location = location
        self.conditional = conditional
        self.faults = list(faults)
        self.content: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        """Method and key of every request, in order; of `list` the folder, of `delete` each key."""
        self.before: Callable[[str, str], None] = lambda method, key: None
        """Called with method and key before a request: what it does, another process did first."""
        self.stopped = threading.Event()
        """Set where a client would end its requests."""
        self._lock = threading.RLock()

    def again(self) -> MemoryObjects:
        """As of a client: here the same objects."""
        return self

    def keys(self, folder: str = "") -> list[str]:
        """The keys that are below a folder now. No request, so no fault."""
        start = f"{folder.strip('/')}/" if folder else ""
        return sorted(key for key in self.content if key.startswith(start))

    def read(self, key: str, most_bytes: int = 1 << 28) -> tuple[bytes, Version]:
        data = self._ask("read", key, lambda: self._get(key))
        if len(data) > most_bytes:
            raise StoreError(f"{self.location}/{key} has {len(data)} bytes, more than {most_bytes}")
        return data, version_of(data)

    def stream(self, key: str, length: int, into: Callable[[memoryview], object]) -> None:
        into(memoryview(self.read(key, length)[0]))

    def find(self, key: str) -> Found | None:
        return self._ask("find", key, lambda: self._found(key) if key in self.content else None)

    def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._ask("delete", key, partial(self.content.pop, key, None))

    def list(self, prefix: str = "") -> list[Found]:
        return self._ask("list", prefix, lambda: [self._found(key) for key in self.keys(prefix)])

    def write(self, key: str, data: bytes) -> Version:
        return self._ask("write", key, lambda: self._put(key, data))

    def create(self, key: str, data: bytes) -> Version:
        return self._ask("create", key, lambda: self._put_if(key, data, None))

    def replace(self, key: str, data: bytes, version: Version) -> Version:
        return self._ask("replace", key, lambda: self._put_if(key, data, version))

    def upload(self, key: str, path: Path) -> Version:
        data = path.read_bytes()
        return self._ask("upload", key, lambda: self._put(key, data))

    def _ask(self, method: str, key: str, act: Callable[[], Answer]) -> Answer:
        with self._lock:
            self.requests.append((method, key))
            self.before(method, key)
            fault = next((fault for fault in self.faults if fault.strikes(method, key)), None)
            if fault is None:
                return act()
            if fault.applied:
                act()
            raise fault.error

    def _get(self, key: str) -> bytes:
        if key not in self.content:
            raise Missing(f"{self.location} has no object {key}")
        return self.content[key]

    def _found(self, key: str) -> Found:
        return Found(key, len(self.content[key]), version_of(self.content[key]))

    def _put(self, key: str, data: bytes) -> Version:
        self.content[key] = data
        return version_of(data)

    def _put_if(self, key: str, data: bytes, version: Version | None) -> Version:
        if not self.conditional:
            raise AssertionError("a conditional write to a store without conditions")
        there = version_of(self.content[key]) if key in self.content else None
        if there != version:
            raise Conflict(f"{self.location}/{key} is of another version")
        return self._put(key, data)
