"""Shards of a set in an object store or on a web server, through the cache of this machine.

Invariants: a shard is held open while it is needed, so that it is not evicted, and released as soon
as the loader has passed it. Shards are fetched whole and ahead, in the order in which they are
needed, as far as this rank's share of the cache goes. A shard for which there is no room, or whose
cache cannot be written, is read image by image. A shard that is fetched whole is compared with its
hash in the description; single images are compared with their own hashes by the loader. No thread
waits for the store beyond the end of its loader, or of the program.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

from stoker.data.index.shard_table import ShardList
from stoker.data.shards import SHARDS_OPEN, OpenShard, Upcoming
from stoker.errors import StokerError
from stoker.faults import reach
from stoker.stores.cache import FileCache, HeldFile, NoRoom, Wanted, WrongHash
from stoker.stores.client import Sink, StoreClient
from stoker.stores.objects import Missing
from stoker.stores.patience import Patience, Stopped
from stoker.stores.trouble import NoParts

FETCHERS = 4
"""Shards that a rank fetches at the same time."""
READERS = 8
"""Requests for single images at the same time."""
STOPPED = "loading was stopped"
BLOCK = 1 << 20
RENEWALS = 3
"""How often a damaged shard of the cache is fetched: another thread may just have opened it."""
POLL_S = 0.2
"""How often a thread that waits for a shard looks whether loading was stopped."""
SENT_AGAIN = "upload the set again, or pack again with 'stoker pack'"


@dataclass(frozen=True)
class Source:
    """Where the shards of a split come from."""

    client: StoreClient
    cache: FileCache | None
    """None: images are read one by one."""
    split: str
    share_bytes: int
    """Bytes of the cache that this split may hold at a time, in this process."""
    index: HeldFile | None
    """The index of the split, which is read again where an image is named; None for a large split,
    whose rows come in parts."""


class StoredShards:
    """The shards of one split in a store."""

    is_local = False

    def __init__(self, source: Source, shards: ShardList) -> None:
        self._source, self._shards = source, shards
        self._client, self._cache = source.client, source.cache
        self._held: OrderedDict[int, OpenShard] = OrderedDict()
        self._in_flight: dict[int, Future[OpenShard | None]] = {}
        self._wanted: list[int] = []
        self._renewing = threading.Lock()
        self._is_starting = True
        """Until the first shards that were wanted are here, the others are read image by image: a
        first batch does not wait for whole shards."""
        self._lock = threading.Lock()
        self._start_pools()
        self._upcoming: Upcoming | None = None
        self._thread = threading.local()
        """Of each thread: its client, and the parts that it has at hand."""
        self._sends_parts = True
        self._reported: set[str] = set()
        self.fetched = self.ranges = 0
        """Shards that were fetched whole, and images that were read alone."""
        IN_USE.add(self)

    def _start_pools(self) -> None:
        """Their threads start when they are first needed."""
        self._fetchers = ThreadPoolExecutor(FETCHERS + 1, "stoker-fetch")
        self._readers = ThreadPoolExecutor(READERS, "stoker-range")

    def place(self, number: int) -> str:
        return f"{self._client.location}/{self._key(number)}"

    def _key(self, number: int) -> str:
        return f"{self._source.split}/{self._shards[number]['name']}"

    def _wanted_file(self, number: int) -> Wanted:
        return Wanted(self._shards[number]["sha256"], int(self._shards[number]["bytes"]))

    def tell(self, report: Callable[[str], None]) -> None:
        self._client.report = report

    def _own_client(self) -> StoreClient:
        """The client of this thread. Raises StokerError in a thread that is from before `close`."""
        client: StoreClient | None = getattr(self._thread, "client", None)
        if client is None:
            client = self._thread.client = self._client
        if client.stopped.is_set():
            raise StokerError(STOPPED)
        return client

    def open(self, number: int, *, whole: bool = False) -> OpenShard | None:
        if self._cache is None:
            return None
        client = self._own_client()
        with self._lock:
            if number in self._held:
                self._held.move_to_end(number)
                return self._held[number]
            future = self._in_flight.get(number)
            if mine := future is None:
                if self._wanted and self._sends_parts and not whole and self._waits(number):
                    return self._cached(number)
                future = self._in_flight[number] = Future()
        if mine:
            self._run_fetch(number, future)
        while not wait([future], POLL_S).done:
            if client.stopped.is_set():
                raise StokerError(STOPPED)
        return future.result()

    def _waits(self, number: int) -> bool:
        """Whether a shard is not to be fetched now: its turn comes later than its first images, or
        there is no room for it beside those that are needed sooner."""
        return self._is_starting or number not in self._wanted

    def _cached(self, number: int) -> OpenShard | None:
        """A shard that is in the cache already; None where it is not."""
        assert self._cache is not None
        with suppress(OSError):
            held = self._cache.held(self._wanted_file(number))
            return OpenShard(held.handle, held) if held else None
        return None

    def _run_fetch(self, number: int, future: Future[OpenShard | None]) -> None:
        """Fetch a shard and hold it; the future gets it, None without room, or the error."""
        try:
            shard = self._fetch(number)
        except BaseException as error:
            self._end_flight(number, future)
            future.set_exception(error)
            return
        with self._lock:
            if shard is not None:
                self._held[number] = shard
                self._release_surplus()
        self._end_flight(number, future)
        future.set_result(shard)

    def _end_flight(self, number: int, future: Future[OpenShard | None]) -> None:
        """A fetch that was begun before `close` may end after another of the same shard began."""
        with self._lock:
            if self._in_flight.get(number) is future:
                del self._in_flight[number]

    def _fetch(self, number: int) -> OpenShard | None:
        """A shard from the cache or, through it, from the store; None where there is no room, or
        where the cache cannot be used."""
        assert self._cache is not None
        client, wanted = self._own_client(), self._wanted_file(number)

        def download(sink: Sink) -> None:
            self.fetched += 1
            client.stream(self._key(number), wanted.bytes, sink)

        while True:
            try:
                held = self._cache.held(wanted)
                if held is None:
                    reach("fetch")
                    patience = Patience(stopped=client.stopped)
                    with naming(self.place(number)):
                        held = self._cache.fetch(wanted, download, patience)
                return OpenShard(held.handle, held)
            except NoRoom:
                if not self._release_unwanted(number):
                    return None
            except Stopped as error:
                raise StokerError(STOPPED) from error
            except OSError as error:
                self._report_cache(client, self._cache, error.strerror or str(error))
                return None

    def _report_cache(self, client: StoreClient, cache: FileCache, reason: str) -> None:
        """Tell once why a cache is not used."""
        if reason not in self._reported:
            self._reported.add(reason)
            client.report(
                f"the cache {cache.folder} cannot be used ({reason}): images are read one by one, "
                "which may be slow"
            )

    def _release_surplus(self) -> None:
        """Release the shard that was opened longest ago, where too many are open."""
        if len(self._held) > SHARDS_OPEN:
            self._held.popitem(last=False)

    def _release_unwanted(self, *needed: int) -> bool:
        """Release the shards that are neither needed now nor next; whether there were any."""
        with self._lock:
            near = {*needed, *self._wanted}
            unwanted = [number for number in self._held if number not in near]
            for number in unwanted:
                del self._held[number]
        return bool(unwanted)

    def read(self, number: int, into: memoryview, offset: int) -> int:
        gathered = getattr(self._thread, "parts", {}).pop((number, offset), None)
        if gathered is None or len(gathered) != len(into):
            self.ranges += 1
            (gathered,) = self._parts(self._own_client(), number, [(offset, len(into))])
        into[:] = gathered
        return len(into)

    def _parts(
        self, client: StoreClient, number: int, ranges: list[tuple[int, int]]
    ) -> Sequence[Any]:
        """The bytes of a shard for each (offset, length), by requests of their own; where the
        server sends no parts, from the whole shard in the cache."""
        try:
            with naming(self.place(number)):
                return client.read_ranges(self._key(number), ranges)
        except Stopped as error:
            raise StokerError(STOPPED) from error
        except NoParts:
            self._sends_parts = False
            shard = self.open(number, whole=True)
            if shard is None:
                raise
            return [os.pread(shard.handle, length, offset) for offset, length in ranges]

    def gather(self, parts: Sequence[tuple[int, int, int]]) -> None:
        client = self._own_client()
        by_shard: dict[int, list[tuple[int, int]]] = {}
        for number, offset, length in parts:
            by_shard.setdefault(number, []).append((offset, length))
        closed = {n: ranges for n, ranges in by_shard.items() if self.open(n) is None}
        self._thread.parts = at_hand = {}
        try:
            calls = {
                number: self._readers.submit(self._parts, client, number, ranges)
                for number, ranges in closed.items()
            }
        except RuntimeError as error:  # they were ended in between
            raise StokerError(STOPPED) from error
        for number, call in calls.items():
            self.ranges += len(closed[number])
            buffers = call.result()
            for (offset, _), buffer in zip(closed[number], buffers, strict=True):
                at_hand[number, offset] = memoryview(buffer)

    def follow(self, upcoming: Upcoming) -> None:
        if self._cache is None:
            return
        with self._lock:
            is_new, self._upcoming = self._upcoming is None, upcoming
        if is_new and not self._client.stopped.is_set():
            self._fetchers.submit(self._plan)

    def _plan(self) -> None:
        """Release what is not needed next, and fetch what is: as many as fit into the share."""
        with self._lock:
            upcoming, self._upcoming = self._upcoming, None
        if upcoming is None:
            return
        wanted = within(upcoming(), self._shards, self._source.share_bytes)
        with self._lock:
            self._wanted = wanted
        self._release_unwanted()
        self._fetch_next()

    def _fetch_next(self) -> None:
        """Begin to fetch the first wanted shards that are neither held nor under way."""
        if self._client.stopped.is_set():
            return
        with self._lock:
            free = FETCHERS - len(self._in_flight)
            missing = [n for n in self._wanted if n not in self._held and n not in self._in_flight]
            if self._wanted and not missing:
                self._is_starting = False
            begun = {number: Future[OpenShard | None]() for number in missing[: max(free, 0)]}
            self._in_flight.update(begun)
        for number, future in begun.items():
            self._fetchers.submit(self._fetch_ahead, number, future)

    def _fetch_ahead(self, number: int, future: Future[OpenShard | None]) -> None:
        self._run_fetch(number, future)
        if future.exception() is None and future.result() is not None:
            self._fetch_next()
        else:
            self._is_starting = False

    def files(self, numbers: Iterable[int]) -> list[Path]:
        if self._cache is None:
            return []
        paths = [self._cache.path_of(self._wanted_file(number)) for number in numbers]
        return [path for path in paths if path.exists()]

    def forget(self, numbers: Iterable[int]) -> None:
        if self._cache is None:
            return
        for number in numbers:
            with self._lock:
                self._held.pop(number, None)
            self._cache.drop(self._wanted_file(number))

    def renew(self, number: int) -> bool:
        if self._cache is None:
            return True  # the next read asks the store again
        # One thread at a time: others that met the same damage find the shard intact.
        with self._renewing:
            for _ in range(RENEWALS):
                shard = self.open(number, whole=True)
                if shard is None or is_intact(shard, self._wanted_file(number)):
                    break
                self.forget([number])
        return True

    def close(self) -> None:
        """End what is under way. Shards that are read later are fetched by new threads."""
        self._client.stopped.set()
        self._client = self._thread.client = self._client.again()
        for pool in (self._fetchers, self._readers):
            pool.shutdown(wait=False, cancel_futures=True)
        self._start_pools()
        with self._lock:
            self._held.clear()
            self._in_flight.clear()
            self._wanted, self._upcoming, self._is_starting = [], None, True

    def abandon(self) -> None:
        """End what waits for the store, for good: the program ends."""
        self._client.stopped.set()


class Abandoned(Protocol):
    """What waits for a store, and shall not beyond the end of the program."""

    def abandon(self) -> None: ...


IN_USE: WeakSet[Abandoned] = WeakSet()


def _abandon_all() -> None:
    for waiting in list(IN_USE):
        waiting.abandon()


# Called before Python waits for threads at its exit, as `atexit` is not.
getattr(threading, "_register_atexit", lambda call: None)(_abandon_all)


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Have what is wrong with a file of a set told by its place. Raises StokerError."""
    try:
        yield
    except Missing as error:
        raise StokerError(f"{place} is missing: {SENT_AGAIN}") from error
    except WrongHash as error:
        raise StokerError(f"{place} is damaged ({error}): {SENT_AGAIN}") from error


def is_intact(shard: OpenShard, wanted: Wanted) -> bool:
    """Whether the bytes of a shard still have their hash."""
    digest, offset = hashlib.sha256(), 0
    while block := os.pread(shard.handle, BLOCK, offset):
        digest.update(block)
        offset += len(block)
    return digest.hexdigest() == wanted.sha256


def within(upcoming: Iterable[int], shards: ShardList, share_bytes: int) -> list[int]:
    """The first of the upcoming shards that fit into a share, each once, the soonest first."""
    chosen: dict[int, None] = {}
    total = 0
    for number in upcoming:
        if number in chosen:
            continue
        total += int(shards[number]["bytes"])
        if total > share_bytes or len(chosen) >= SHARDS_OPEN:
            break
        chosen[number] = None
    return list(chosen)
