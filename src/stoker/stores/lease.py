"""The lease of a run in an object store: one process trains it and commits its checkpoints.

Invariants: a change of the head is one write on the condition that the head is still the one that
the writer knows. So of two writers one fails, and a holder that has lost its lease commits nothing.
No two writes have the same bytes: an acquisition has an id of its own, a holder's try a beat of its
own. So no version comes back: a write that arrives late, or twice, finds its condition broken. A
holder whose answer was lost reads which of its tries was applied.

Clocks of two machines are never compared. A holder has the lease until `ttl_s` seconds after the
beginning of the last request that it knows to be applied. Another process takes the lease after it
has seen the same bytes for MARGIN * `ttl_s` seconds of its own clock. The first of these times ends
before the second, where each clock is at most 10 % fast or slow.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any

from stoker.errors import BadRequest, StokerError
from stoker.stores.head import (
    KEY,
    LONGEST_S,
    MOST_BYTES,
    MOST_HOST,
    SHORTEST_S,
    Head,
    WrongHead,
    parse_head,
)
from stoker.stores.objects import Denied, Missing, Objects, StoreError, Version
from stoker.stores.patience import Stopped
from stoker.text import seconds, shown

MARGIN = 1.25
POLL_S = 2.0
"""Seconds between two looks at a lease that another process holds."""
NEVER = -math.inf


class LeaseHeld(BadRequest):
    """Another process trains the run."""

    def __init__(self, place: str, head: Head) -> None:
        wait = seconds(head.ttl_s * MARGIN)
        super().__init__(
            f"{place} is trained by another process, on {shown(head.host)}: stop that one, or name "
            f"another place; if that machine is gone, try again for longer than {wait}"
        )
        self.head = head


class LeaseLost(StokerError):
    """This process does not hold the lease: it may not train the run, and it commits nothing."""


class NoConditions(BadRequest):
    """A store that does not keep two processes from writing over each other."""


def lasting_clock() -> float:
    """Seconds of a clock that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class HeadLease:
    """The lease of a run, and the way to change its head. Several threads may use it.

    A store without conditional writes allows no lease. With `unlocked=True` everything works there
    too, but two processes may then hold the run at a time, and each may undo the other's commits.
    """

    def __init__(
        self,
        objects: Objects,
        *,
        ttl_s: float = 60.0,
        host: str,
        clock: Callable[[], float] = lasting_clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not SHORTEST_S <= ttl_s <= LONGEST_S:
            raise ValueError(f"ttl_s is {ttl_s}")
        self._objects, self._ttl_s, self._host = objects, float(ttl_s), host[:MOST_HOST]
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._conditional = True
        self._mine: tuple[Head, Version] | None = None
        """The newest head that this process knows to be applied, while it knows of no later one."""
        self._valid_until = NEVER
        self._leaving = False
        self._beat = 0
        """Of the last try, applied or not."""
        self._begun: dict[int, float] = {}
        """When each try of this acquisition began that may still be applied, by its beat."""
        self._tried: set[str] = set()
        """The ids of all acquisitions that this object has tried."""
        self._holders: set[str] = set()
        """These, and the one that its folder had earlier."""
        self._watched: tuple[bytes, float] = b"", NEVER
        """The head of another holder, and since when it is that."""

    @property
    def held(self) -> bool:
        """Whether this process has the lease now, by its own clock."""
        return not self._leaving and self._clock() < self._valid_until

    @property
    def holder(self) -> str:
        """The id of this acquisition; empty where there is none."""
        return self._mine[0].holder if self._mine else ""

    def acquire(
        self, patience_s: float, *, unlocked: bool = False, earlier: str = ""
    ) -> dict[str, Any]:
        """Take the lease; returns the content. Waits so long for a lease that another process
        holds, and for a store that fails. Then raises LeaseHeld or StoreError. Raises NewerFormat,
        WrongHead and Denied at once, NoConditions where the store allows no lease. Whatever this
        object held before is given up. `earlier` is the id of an acquisition by a process that has
        ended, as the caller knows: its lease is taken at once."""
        self._conditional = self._objects.conditional
        if not self._conditional and not unlocked:
            raise NoConditions(
                f"{self._objects.location} does not support conditional writes, so two machines "
                "could train this run at a time and undo each other's work: use a store that does"
            )
        give_up = self._clock() + patience_s
        with self._lock:
            self._holders.add(earlier)
            self._forget()
            self._leaving = False
        while True:
            try:
                with self._lock:
                    other = self._take()
                if self.held:
                    return self._content()
                reason = self._reason(other)
            except (Denied, WrongHead):
                raise
            except StoreError as error:
                reason = error
            if (left := give_up - self._clock()) <= 0:
                raise reason
            self._sleep(min(POLL_S, left))

    def renew(self) -> None:
        """Keep the lease for `ttl_s` more. Raises LeaseLost where another process has it, and
        StoreError where the store fails: then it is to be tried again, as long as it is held."""
        with self._lock:
            self._put(lambda content: content)

    def commit(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Replace the content by what `change` makes of it; returns the new one. Also renews the
        lease. Raises LeaseLost where another process has the lease, StoreError where the store
        fails. The change may then have been made, or be made a little later, so `change` must allow
        for content in which it already is."""
        with self._lock:
            self._put(change)
            return self._content()

    def release(self) -> None:
        """Give the lease up, so that another process can have it at once. Raises nothing where the
        store fails or the lease is lost: it then ends by itself."""
        self._leaving = True  # before the request: once it is applied, another may hold the lease
        with self._lock:
            with suppress(LeaseLost, StoreError, WrongHead, Stopped):
                if self._mine is None and self._tried and (there := self._look()):
                    head, _, version = there  # an acquisition whose answer did not arrive here
                    if head.holder in self._tried:
                        self._adopt(head, version)
                self._put(lambda content: content, released=True)
            self._forget()

    def _content(self) -> dict[str, Any]:
        head, _ = self._require()
        return deepcopy(head.content)

    def _require(self) -> tuple[Head, Version]:
        if self._mine is None:
            raise LeaseLost(f"{self._objects.location}: this process does not train the run")
        return self._mine

    def _forget(self) -> None:
        self._mine, self._valid_until = None, NEVER
        self._begun.clear()

    def _take(self) -> Head | None:
        """Take the lease where it is free; returns the head of its holder where it is not. Raises
        StoreError."""
        if (there := self._look()) is None:
            return self._begin({}, None)
        head, data, version = there
        # An earlier acquisition of this object is given up, also if it was applied just now.
        if head.released or head.holder in self._holders or self._is_over(head, data):
            return self._begin(head.content, version)
        return head

    def _reason(self, other: Head | None) -> StokerError:
        """Why the lease was not taken."""
        if other is not None:
            return LeaseHeld(self._objects.location, other)
        return StoreError(
            f"{self._objects.location} takes longer than {seconds(self._ttl_s)} to answer: try "
            "again later"
        )

    def _is_over(self, head: Head, data: bytes) -> bool:
        """Whether a holder has not changed its head for too long."""
        now = self._clock()
        if self._watched[0] != data:
            self._watched = data, now
        return now - self._watched[1] > head.ttl_s * MARGIN

    def _begin(self, content: dict[str, Any], version: Version | None) -> Head | None:
        """Begin an acquisition in place of the head of that version (None: there is none); returns
        the head of another process that was first. Raises StoreError."""
        self._forget()
        holder, self._beat = secrets.token_hex(8), 0
        self._holders.add(holder)
        self._tried.add(holder)
        try:
            self._send(Head(holder, self._host, 0, self._ttl_s, False, content), version)
        except Denied:
            raise
        except StoreError:
            there = self._look()
            if there is None or there[2] == version:
                raise
            head, _, newest = there
            if head.holder != holder:
                return head
            self._adopt(head, newest)
        return None

    def _put(
        self, change: Callable[[dict[str, Any]], dict[str, Any]], *, released: bool = False
    ) -> None:
        """Write a changed head. Raises LeaseLost, StoreError."""
        first = self._beat + 1
        if not self._conditional:
            self._read_back()
        while True:
            head, version = self._require()
            self._beat += 1
            content = change(deepcopy(head.content))
            try:
                self._send(
                    replace(head, beat=self._beat, released=released, content=content), version
                )
                return
            except Denied:
                raise
            except StoreError:
                newest = self._read_back()
                if newest.beat >= first:
                    return
                if newest.beat == head.beat:
                    raise
            # An earlier try was applied late: the change is made on top of it.

    def _send(self, head: Head, version: Version | None) -> None:
        """Write a head in place of that version, and take it for the newest. Raises StoreError,
        after which it may still be applied."""
        data = head.encoded()
        head = parse_head(data, self._objects.location)  # as others read it
        self._begun[head.beat] = self._clock()
        if not self._conditional:
            written = self._objects.write(KEY, data)
        elif version is None:
            written = self._objects.create(KEY, data)
        else:
            written = self._objects.replace(KEY, data, version)
        self._adopt(head, written)

    def _adopt(self, head: Head, version: Version) -> None:
        """Take a head of this process for the newest: no other try can be applied any more."""
        began = self._begun.get(head.beat, NEVER)
        self._mine = head, version
        self._valid_until = max(self._valid_until, began + self._ttl_s)
        self._begun.clear()

    def _look(self) -> tuple[Head, bytes, Version] | None:
        try:
            data, version = self._objects.read(KEY, MOST_BYTES)
        except Missing:
            return None
        return parse_head(data, self._objects.location), data, version

    def _read_back(self) -> Head:
        """The newest head, which is this process's own. Raises LeaseLost where it is not."""
        own, _ = self._require()
        try:
            there = self._look()
            reason = f"{shown(there[0].host)} has taken it over" if there else f"{KEY} is gone"
        except (WrongHead, BadRequest) as error:
            there, reason = None, str(error)
        if there is None or there[0].holder != own.holder:
            self._forget()
            raise LeaseLost(
                f"{self._objects.location}: this process no longer trains the run: {reason}; "
                "what it has not committed does not count"
            )
        head, _, version = there
        if head.beat != own.beat:
            self._adopt(head, version)
        return head
