"""Bugs put in by hand into the lease and the folders of a run in an object store."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from copy import deepcopy
from dataclasses import replace
from typing import Any
from unittest import mock

from simulation import trainer
from stoker.stores import commit_folder, lease
from stoker.stores.head import KEY, Head
from stoker.stores.lease import HeadLease, LeaseLost
from stoker.stores.objects import StoreError, Version

Bug = Callable[[], AbstractContextManager[Any]]
Change = Callable[[dict[str, Any]], dict[str, Any]]


def replaced(owner: Any, name: str, value: Any) -> Bug:
    return lambda: mock.patch.object(owner, name, value)


# The lease.

send, take_for_newest = HeadLease._send, HeadLease._adopt
is_over, read_back = HeadLease._is_over, HeadLease._read_back


def write_blindly(self: HeadLease, head: Head, version: Version | None) -> None:
    self._begun[head.beat] = self._clock()
    self._adopt(head, self._objects.write(KEY, head.encoded()))


def at_once(self: HeadLease, head: Head, data: bytes) -> bool:
    """A lease is taken without waiting for its end."""
    return self._conditional or is_over(self, head, data)


def at_no_time(self: HeadLease, head: Head, data: bytes) -> bool:
    """A lease never ends by itself."""
    return False


def by_own_ttl(self: HeadLease, head: Head, data: bytes) -> bool:
    """The lease of another ends after this process's `ttl_s`."""
    now = self._clock()
    if self._watched[0] != data:
        self._watched = data, now
    return now - self._watched[1] > self._ttl_s * lease.MARGIN


def whatever_it_says(self: HeadLease, head: Head, data: bytes) -> bool:
    """The beats of another holder are not looked at."""
    if self._watched[0] != head.holder.encode():
        self._watched = head.holder.encode(), self._clock()
    return self._clock() - self._watched[1] > head.ttl_s * lease.MARGIN


def from_the_answer(self: HeadLease, head: Head, version: Version) -> None:
    """The lease counts from the answer, not from the beginning of the request."""
    self._begun[head.beat] = self._clock()
    take_for_newest(self, head, version)


def without_a_look(self: HeadLease) -> Head:
    """A write whose answer was lost counts as failed."""
    if not self._conditional:
        return read_back(self)
    self._forget()
    raise LeaseLost("a write failed")


def on_any_head(self: HeadLease) -> Head:
    """A write that failed is tried again on the newest version, whoever wrote it."""
    own, _ = self._require()
    if not self._conditional:
        return read_back(self)
    if there := self._look():
        self._mine = own, there[2]
        return replace(own, beat=-1)
    return own


def release_blindly(self: HeadLease) -> None:
    """A holder that has lost its lease releases that of another."""
    if self._mine:
        head, _ = self._mine
        self._forget()
        with suppress(StoreError):
            self._objects.write(KEY, replace(head, beat=self._beat + 1, released=True).encoded())


def release_late(self: HeadLease) -> None:
    """A lease counts as held until the answer to its release."""
    with self._lock:
        with suppress(LeaseLost, StoreError):
            self._put(lambda content: content, released=True)
        self._forget()


def with_beats_twice(self: HeadLease, change: Change, *, released: bool = False) -> None:
    """A try has the beat of an earlier one that failed, and so may have the same bytes."""
    while True:
        head, version = self._require()
        self._beat = head.beat + 1
        content = change(deepcopy(head.content))
        later = replace(head, beat=self._beat, released=released, content=content)
        try:
            send(self, later, version)
            return
        except StoreError:
            newest = read_back(self)
            if newest == later:
                return
            if newest.beat == head.beat:
                raise


def on_old_content(self: HeadLease, change: Change, *, released: bool = False) -> None:
    """A change is made of the content that was known first, also if a later one is found."""
    first, content = self._beat + 1, None
    while True:
        head, version = self._require()
        self._beat += 1
        content = content or change(deepcopy(head.content))
        try:
            send(self, replace(head, beat=self._beat, released=released, content=content), version)
            return
        except StoreError:
            newest = self._read_back()
            if newest.beat >= first:
                return
            if newest.beat == head.beat:
                raise


# Folders.


def upload(
    objects: Any, prefix: str, folder: Any, marker: str, before_marker: Callable[[], None]
) -> int:
    """The marker is written before the events."""
    count = upload_whole(objects, prefix, folder, marker, lambda: None)
    before_marker()
    return count


upload_whole = commit_folder.upload_folder


def upload_by_name(
    objects: Any, prefix: str, folder: Any, marker: str, before_marker: Callable[[], None]
) -> int:
    """Files are written in the order of their names: the marker first."""
    before_marker()
    paths = sorted(folder.iterdir(), key=lambda path: path.name)
    for path in paths:
        objects.upload(f"{prefix}/{path.name}", path)
    return len(paths)


def whatever_is_there(objects: Any, prefix: str, marker: str) -> dict[str, int]:
    """A folder is taken without its marker."""
    start = f"{prefix}/"
    return {found.key.removeprefix(start): found.bytes for found in objects.list(prefix)}


def under_its_name(path: Any) -> Any:
    """A folder is downloaded under its final name."""
    return path


def keep(path: Any) -> None: ...


def rename_nothing(draft: Any, folder: Any, marker: str) -> None: ...


def in_place() -> AbstractContextManager[Any]:
    return mock.patch.multiple(
        commit_folder, temporary=under_its_name, remove=keep, _give_name=rename_nothing
    )


def by_position(holder: str, position: int, save: int) -> str:
    """Two holders that save at a position use one folder."""
    return f"checkpoints/{position:09d}"


STORE: dict[str, Bug] = {
    "a head that is written without a condition": replaced(HeadLease, "_send", write_blindly),
    "a lease that is taken at once": replaced(HeadLease, "_is_over", at_once),
    "a lease that never ends": replaced(HeadLease, "_is_over", at_no_time),
    "a lease that ends by another's time": replaced(HeadLease, "_is_over", by_own_ttl),
    "a lease that ends though its holder renews it": replaced(
        HeadLease, "_is_over", whatever_it_says
    ),
    "a lease without a margin for clocks": replaced(lease, "MARGIN", 1.0),
    "a lease that counts from the answer": replaced(HeadLease, "_adopt", from_the_answer),
    "a lost answer that counts as a failure": replaced(HeadLease, "_read_back", without_a_look),
    "a failed write that is tried on any head": replaced(HeadLease, "_read_back", on_any_head),
    "a release of another's lease": replaced(HeadLease, "release", release_blindly),
    "a lease that is held until its release is answered": replaced(
        HeadLease, "release", release_late
    ),
    "a beat that is used twice": replaced(HeadLease, "_put", with_beats_twice),
    "a change of old content": replaced(HeadLease, "_put", on_old_content),
    "a marker before the events": replaced(commit_folder, "upload_folder", upload),
    "a marker before the files": replaced(commit_folder, "upload_folder", upload_by_name),
    "a folder that is taken without its marker": replaced(
        commit_folder, "_sizes", whatever_is_there
    ),
    "a download under its final name": in_place,
    "a folder that two holders share": replaced(trainer, "prefix_of", by_position),
}
