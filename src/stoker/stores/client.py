"""Objects in S3, GCS, Azure and on web servers, by obstore.

Invariants: every request is tried again for a while where that may help, with jitter, and fails at
once where it cannot. What arrives has the length that was asked for. A stream that breaks off goes
on behind its last byte, of the same version of the object. No message holds a credential or a
signed address.
"""

from __future__ import annotations

import secrets
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from stoker.stores.credentials import Connection
from stoker.stores.location import Location, key_of
from stoker.stores.objects import Conflict, Found, Missing, StoreError, Version, listed, version_of
from stoker.stores.patience import Pace, Patience, answer_to, answers_to
from stoker.stores.settings import store_patience
from stoker.stores.trouble import NoParts, StoreTrouble, Unsupported, error_of, trouble_of
from stoker.text import plural
from stoker.text import size as size_text

Result = TypeVar("Result")
Sink = Callable[[memoryview], None]

CHUNK = 1 << 20
NEAR = 32 << 10
"""Bytes between two ranges up to which they become one request."""
RANGES_AT_ONCE = 8
PAGE = 1000
"""Entries of a listing that are taken at once."""
PART = 16 << 20
"""Bytes of a part of a large upload; smaller files are one request."""
PARTS_AT_ONCE = 4
SURE_TRIES = 3
"""Tries after which an answer that contradicts the set is believed: an object that is not there, or
one of another length."""
KEY_TRIES = 2
"""Tries after which there are no credentials. One takes at most a second."""


class StoreClient:
    """The objects under a location."""

    def __init__(
        self,
        location: Location,
        *,
        patience_s: float | None = None,
        stopped: threading.Event | None = None,
        report: Callable[[str], None] = lambda message: None,
    ) -> None:
        self.place = location
        self._patience_s = store_patience() if patience_s is None else patience_s
        self._connection, self._pace = Connection(location, self._patience_s), Pace()
        self.stopped = stopped or threading.Event()
        """Ends all waiting: requests then raise Stopped."""
        self.report = report
        self.requests = self.failures = self.bytes_read = 0
        """Counted without a lock, for the records of a run."""
        self._has_keys = location.is_web
        """Whether a request was answered with these credentials."""
        self._conditional: bool | None = None
        self._bare_etags = False
        """Whether conditions name an etag without its quotes."""

    def again(self) -> StoreClient:
        """A client of the same location that is not stopped."""
        return StoreClient(self.place, patience_s=self._patience_s, report=self.report)

    @property
    def location(self) -> str:
        return str(self.place)

    @property
    def conditional(self) -> bool:
        if self._conditional is None:
            self._conditional = not self.place.is_web and self._tries_conditions()
        return self._conditional

    def _tries_conditions(self) -> bool:
        """Write an object twice: does the store refuse the second, and a replacement of what it
        does not hold?"""
        key, data = f".conditions-{secrets.token_hex(8)}", b"tries whether conditions are kept\n"
        try:
            written = self.create(key, data)
            if self._is_done(lambda: self.create(key, data + b"2")):
                return False
            if not self._is_done(lambda: self.replace(key, data + b"3", written)):
                self._bare_etags = True  # as Ceph 16 wants them
                self.replace(key, data + b"3", written)
            return not self._is_done(lambda: self.replace(key, data + b"4", written))
        except (Missing, Unsupported):
            return False
        finally:
            with suppress(StoreError):
                self.delete([key])

    @staticmethod
    def _is_done(write: Callable[[], Version]) -> bool:
        """Whether a write was made; False where its condition did not hold."""
        try:
            write()
        except Conflict:
            return False
        return True

    def _patiently(
        self,
        what: str,
        call: Callable[[], Result],
        patience: Patience | None = None,
        sure_tries: int = 1,
    ) -> Result:
        """The result of a request, which is tried again where that may help. After `sure_tries`
        without an object it is missing."""
        from obstore.exceptions import BaseError

        patience = patience or self._new_patience()
        place = f"{self.place}/{what}".rstrip("/")
        while True:
            patience.begin_try()
            self.requests += 1
            hosts = self._connection.hosts
            try:
                result = call()
            except (BaseError, OSError, EarlyEnd, NotImplementedError) as error:
                if self._connection.lets_through(error, hosts):
                    continue
                trouble = trouble_of(error, self.place)
                if not self._may_pass(trouble, patience.failures + 1, sure_tries):
                    raise error_of(trouble, place) from error
                self.failures += 1
                if not patience.may_try_again(f"{self.place}: {trouble.cause}"):
                    text = f"{trouble.sentence(place)} (tried {plural(patience.failures, 'time')})"
                    raise StoreError(text) from error
            else:
                self._has_keys = True
                patience.progress()
                return result

    def _may_pass(self, trouble: StoreTrouble, tries: int, sure_tries: int) -> bool:
        """Whether another try may mend it. A machine that had credentials gets them again: its
        metadata service fails now and then, as any other."""
        if trouble.kind == "keyless":
            return self._has_keys or tries < KEY_TRIES
        limits = {"missing": sure_tries, "partless": sure_tries, "sent on": SURE_TRIES}
        if trouble.kind in limits:
            return tries < limits[trouble.kind]
        return trouble.may_pass

    def _new_patience(self) -> Patience:
        return Patience(self._patience_s, self.stopped, lambda text: self.report(text), self._pace)

    def _ask(self, call: Callable[..., Any], key: str | None, *values: Any, **options: Any) -> Any:
        """What a function of obstore returns for a key. It waits for the server in another thread,
        which is left behind where this client is stopped. Raises Stopped."""
        keys = () if key is None else (key_of(key),)
        return answer_to(
            lambda: call(self._connection.store, *keys, *values, **options), self.stopped
        )

    def read(self, key: str, most_bytes: int = 1 << 28) -> tuple[bytes, Version]:
        def get() -> tuple[bytes, Version]:
            import obstore

            answer = self._ask(obstore.get, key)
            length = int(answer.meta["size"])
            if length > most_bytes:
                raise StoreError(
                    f"{self.place}/{key} has {size_text(length)}, more than such an object can have"
                )
            data = b"".join(self._parts(answer.stream(min_chunk_size=CHUNK), key, "of 1 MB"))
            if len(data) != length:
                raise EarlyEnd(len(data), length)
            self.bytes_read += length
            return data, version_of(answer.meta)

        return self._patiently(key, get)

    def read_range(self, key: str, offset: int, into: memoryview) -> None:
        """Fill `into` with the bytes of an object from `offset` on. Raises Missing, NoParts."""
        if len(into):
            into[:] = self.read_ranges(key, [(offset, len(into))])[0]

    def read_ranges(self, key: str, ranges: list[tuple[int, int]]) -> list[Any]:
        """Buffers with the bytes of an object for each (offset, length), by requests at the same
        time; near ranges become one. Raises Missing, NoParts."""

        wide = spans(ranges)

        def get() -> list[Any]:
            from obstore import get_range

            # Not get_ranges, which ends with a panic where an answer is too short.
            calls = [
                partial(get_range, self._connection.store, key_of(key), start=start, end=end)
                for start, end in wide
            ]
            parts = answers_to(calls, self.stopped, RANGES_AT_ONCE)
            for part, (start, end) in zip(parts, wide, strict=True):
                if len(part) != end - start:
                    raise EarlyEnd(len(part), end - start)
            self.bytes_read += sum(map(len, parts))
            return [memoryview(part) for part in parts]

        parts = self._patiently(key, get, sure_tries=SURE_TRIES) if ranges else []
        starts = [start for start, _ in wide]
        places = [(bisect_right(starts, offset) - 1, offset, length) for offset, length in ranges]
        return [
            parts[number][offset - starts[number] :][:length] for number, offset, length in places
        ]

    def stream(self, key: str, length: int, into: Sink) -> None:
        """Pass an object of this length on in chunks. Where an answer breaks off, the next one goes
        on behind it, of another version if the object was replaced: compare the hash of the whole.
        Raises Missing, and StoreError where it has another length."""
        download, patience = _Download(self, key, length, into), self._new_patience()
        while True:
            try:
                return self._patiently(key, partial(download.go_on, patience), patience, SURE_TRIES)
            except Conflict:
                if download.etag is None:
                    raise
                download.etag = None
            except NoParts:
                if download.is_whole:
                    raise
                download.is_whole = True

    def find(self, key: str, sure_tries: int = 1) -> Found | None:
        def head() -> Found:
            import obstore

            meta = self._ask(obstore.head, key)
            return Found(key, int(meta["size"]), version_of(meta))

        try:
            return self._patiently(key, head, sure_tries=sure_tries)
        except Missing:
            return None

    def list(self, prefix: str = "") -> list[Found]:
        def collect() -> list[Found]:
            import obstore

            below = prefix.strip("/") or None
            pages = obstore.list(self._connection.store, prefix=below, chunk_size=PAGE)
            return listed(self._parts(pages, prefix, "of its listing"), f"{self.place}/{prefix}")

        return self._patiently(prefix, collect)

    def _parts(self, parts: Iterable[Any], key: str, what: str) -> Iterator[Any]:
        """The parts of an answer. Raises TimeoutError where one takes longer than the patience, and
        Stopped; tells of one that takes long."""
        patience, each = self._new_patience(), iter(parts)
        waiting = f"{self.place}/{key}: the next part {what}"
        take = partial(answer_to, lambda: next(each, None), self.stopped)
        while (part := take(lambda: patience.wait_on(waiting))) is not None:
            yield part
            patience.restart()

    def write(self, key: str, data: bytes) -> Version:
        return self._put(key, data, "overwrite")

    def create(self, key: str, data: bytes) -> Version:
        return self._put(key, data, "create")

    def replace(self, key: str, data: bytes, version: Version) -> Version:
        etag = (version.etag or "").strip('"') if self._bare_etags else version.etag
        parts = {"e_tag": etag, "version": version.number}
        return self._put(key, data, {name: text for name, text in parts.items() if text})

    def _put(self, key: str, data: bytes, mode: Any) -> Version:
        """A write whose answer was lost may be found done by the next try: then the object holds
        these bytes, and the write has succeeded."""
        patience = self._new_patience()

        def put() -> Version:
            import obstore

            answer = self._ask(obstore.put, key, data, mode=mode, use_multipart=False)
            return Version(answer["e_tag"], answer["version"])

        try:
            return self._patiently(key, put, patience)
        except Conflict:
            if patience.failures:
                with suppress(Missing):
                    content, version = self.read(key, len(data))
                    if content == data:
                        return version
            raise

    def upload(self, key: str, path: Path) -> Version:
        def put() -> Version:
            import obstore

            parts: dict[str, Any] = {"chunk_size": PART, "max_concurrency": PARTS_AT_ONCE}
            self._ask(obstore.put, key, path, use_multipart=path.stat().st_size > PART, **parts)
            # A large upload returns no version.
            meta = self._ask(obstore.head, key)
            if int(meta["size"]) != path.stat().st_size:
                raise EarlyEnd(int(meta["size"]), path.stat().st_size)
            return version_of(meta)

        return self._patiently(key, put)

    def delete(self, keys: Sequence[str]) -> None:
        def remove() -> None:
            import obstore

            with suppress(FileNotFoundError):
                self._ask(obstore.delete, None, [key_of(key) for key in keys])

        if keys:
            self._patiently(keys[0], remove)


@dataclass
class _Download:
    """An object on its way."""

    client: StoreClient
    key: str
    length: int
    into: Sink
    done: int = 0
    etag: str | None = None
    """The version that the next part must have."""
    is_whole: bool = False
    """Whether the object is asked for from its beginning each time: the server sends no parts."""
    other_lengths: int = 0

    def go_on(self, patience: Patience) -> None:
        """Pass on what comes behind the last byte. Raises EarlyEnd where that ends early."""
        import obstore

        client, options = self.client, dict[str, Any]()
        if self.done and not self.is_whole:
            options["range"] = (self.done, self.length)
        if self.done and self.etag and not client.place.is_web:
            options["if_match"] = self.etag
        answer = client._ask(obstore.get, self.key, options=options)
        self._check_length(int(answer.meta["size"]))
        self.etag, at = answer.meta.get("e_tag"), int(answer.range[0])
        if at > self.done:
            raise EarlyEnd(at, self.done)
        for chunk in client._parts(answer.stream(min_chunk_size=CHUNK), self.key, "of 1 MB"):
            patience.require_going()
            view = memoryview(chunk)
            if at + len(view) > self.length:
                raise EarlyEnd(at + len(view), self.length)
            client.bytes_read += len(view)
            fresh, at = view[max(self.done - at, 0) :], at + len(view)
            if fresh:
                self.into(fresh)
                self.done += len(fresh)
                patience.progress()
        if self.done != self.length:
            raise EarlyEnd(self.done, self.length)

    def _check_length(self, length: int) -> None:
        """Raise EarlyEnd for another length than the object must have; StoreError after a few."""
        if length == self.length:
            return
        self.other_lengths += 1
        if self.other_lengths < SURE_TRIES:
            raise EarlyEnd(length, self.length)
        raise StoreError(
            f"{self.client.place}/{self.key} has {length:,} bytes, not {self.length:,}: it was "
            "changed after packing: upload the set again"
        )


class EarlyEnd(Exception):
    """An answer with fewer bytes than were asked for."""

    def __init__(self, length: int, expected: int) -> None:
        super().__init__(f"an answer of {length:,} bytes instead of {expected:,}")


def spans(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The parts (start, end) of an object that hold all ranges (offset, length), in order. Near
    ranges are in one part."""
    wide: list[tuple[int, int]] = []
    for offset, length in sorted(ranges):
        if wide and offset <= wide[-1][1] + NEAR:
            wide[-1] = wide[-1][0], max(wide[-1][1], offset + length)
        else:
            wide.append((offset, offset + length))
    return wide
