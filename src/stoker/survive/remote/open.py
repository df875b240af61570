"""Folders of this machine for runs in an object store: to train one, or to look at one.

Invariants: a folder in which a process trains is left alone. A folder that holds another run than
the store is set aside, never removed: it may be the last copy. A copy to look at is only a copy.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from stoker.commit import remove
from stoker.errors import BadRequest, StokerError
from stoker.fleet.elastic import KEY_FILE
from stoker.run.directory import Run
from stoker.run.listing import RUNNING, summary_of
from stoker.run.storage import refused
from stoker.stores.client import StoreClient
from stoker.stores.head import KEY, WrongHead, read_head
from stoker.stores.lease import LeaseHeld
from stoker.stores.location import Location, location_of
from stoker.stores.objects import Objects
from stoker.stores.settings import cache_folder, note_named
from stoker.survive.remote.folder_mark import (
    FolderMark,
    drop_foreign,
    drop_unrecorded,
    read_mark,
    write_mark,
)
from stoker.survive.remote.mirror import RunMirror, lease_seconds
from stoker.survive.remote.place import bind, share_key
from stoker.survive.remote.pull import pull
from stoker.survive.remote.records import Content
from stoker.text import say

_held: list[Run] = []
"""Copies whose locks this process holds."""


def content_of(objects: Objects) -> Content:
    """What the store has of a run; nothing where it has none. Raises StoreError, NewerFormat."""
    head = read_head(objects)
    return Content.of(head.content if head else {}, objects.location)


def open_working_folder(location: Location, *, for_nodes: bool = False) -> Path:
    """The folder in which this command trains the run of a location, with the records that are in
    the store; with the last checkpoints, too, where the run is finished. `for_nodes`: also with the
    key that its machines share. Raises StoreError, BadRequest where the disk refuses."""
    folder, objects = bind(location), StoreClient(location)
    content = content_of(objects)
    try:
        set_other_aside(folder, content, location)
        refresh_records(objects, folder, content)
        if Run(folder).exists and Run(folder).finished and not Run(folder).is_running:
            own = read_mark(folder).is_newest(content)
            pull(objects, folder, content, checkpoints=True, own=own)
        if for_nodes:
            share_key(objects, folder / KEY_FILE)
    except OSError as error:
        raise refused(folder, error) from error
    return folder


def refresh_records(objects: Objects, folder: Path, content: Content) -> None:
    """Bring the records of a working folder up to date. One in which a process trains, and one in
    which the newest attempt was made, keep what they have. Raises StoreError, OSError."""
    mark = read_mark(folder)
    if content.run_id and not Run(folder).is_running:
        drop_unrecorded(folder)
        pull(objects, folder, content, checkpoints=False, own=mark.is_newest(content))
        write_mark(folder, replace(mark, run_id=content.run_id, known=content.attempt))


def set_other_aside(folder: Path, content: Content, location: Location) -> None:
    """Rename a working folder that holds another run than the store. Raises OSError."""
    mark = read_mark(folder)
    if not mark.is_other(content) or Run(folder).is_running:
        return
    aside = folder.with_name(f"{folder.name}-{secrets.token_hex(4)}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return  # another rank of this command was first
    say(
        f"note: {location} no longer has the run that was trained here before: that one is kept in "
        f"{aside}",
        stream=sys.stderr,
    )


def update_working_folder(location: Location, folder: Path) -> None:
    """Bring the records of a working folder up to date, as far as the store answers."""
    objects = StoreClient(location, patience_s=10.0)
    with suppress(StokerError, OSError):
        refresh_records(objects, folder, content_of(objects))


def was_trained_here(folder: Path) -> bool:
    """Whether rank 0 of an attempt ran in this folder."""
    return read_mark(folder).attempt > 0


def upload_rest(location: Location, folder: Path, *, always: bool = False) -> None:
    """Upload what the newest attempt of this folder has left that is not in the store; nothing
    where it is all there, unless `always`. Raises StokerError."""
    mark, run = read_mark(folder), Run(folder)
    if not mark.attempt or (mark.sent and not always):
        return
    run.lock()
    try:
        if not mark.is_newest(content_of(StoreClient(location))):
            return
        mirror = RunMirror(folder, location, leads=True)
        mirror.open(2 * lease_seconds())
        mirror.send_rest()
        mirror.close()
    except LeaseHeld:
        if not always:
            raise
    finally:
        run.unlock()


def copy_folder(location: Location) -> Path:
    """The folder of this machine for a copy of a run to look at."""
    return cache_folder() / "copies" / location.digest / location.name


@dataclass(frozen=True)
class StoredCopy:
    """A copy of a run with all of its checkpoints."""

    folder: Path
    damaged: list[str]
    """Checkpoints of the store that are not whole."""


def local_copy(run: str, *, checkpoints: bool = False, also: str = "") -> str:
    """The path of a run: itself for a folder, a copy for a run in a store. `checkpoints`: with the
    newest checkpoint, the best one and one of the name `also`. Raises BadRequest where there is no
    run, StoreError."""
    location = location_of(run)
    if location is None:
        return run
    if location.is_web:
        raise BadRequest(f"{location}: runs are read from s3://, gs:// and az:// alone")
    note_named(location)
    objects = StoreClient(location)
    head = read_head(objects)
    content = Content.of(head.content if head else {}, objects.location)
    if "run.json" not in content.files:
        raise BadRequest(f"{location} is not a run (no {KEY} of one): name s3://BUCKET/RUN")
    copied(objects, location, content, checkpoints=checkpoints, also=[also])
    folder = copy_folder(location)
    if head and not head.released:
        seem_running(folder)
    return str(folder)


def whole_copy(location: Location) -> StoredCopy | None:
    """A copy of a run with all of its checkpoints; None where the location has no run. Raises
    StoreError, BadRequest where the disk refuses."""
    objects = StoreClient(location)
    try:
        content = content_of(objects)
    except WrongHead:
        return None
    if "run.json" not in content.files:
        return None
    damaged = copied(objects, location, content, checkpoints=True, also=content.checkpoints)
    if damaged:  # unless the run has removed it since
        damaged &= set(content_of(objects).checkpoints)
    places = [f"{location}/{content.checkpoints[name]}" for name in sorted(damaged)]
    return StoredCopy(copy_folder(location), places)


def copied(
    objects: Objects,
    location: Location,
    content: Content,
    *,
    checkpoints: bool,
    also: Collection[str],
) -> set[str]:
    """Bring the copy of a run up to date; returns the checkpoints that are damaged in the store.
    Raises StoreError, BadRequest where the disk refuses."""
    folder = copy_folder(location)
    try:
        if read_mark(folder).is_other(content):
            remove(folder)
        drop_foreign(folder, content)
        damaged = pull(objects, folder, content, checkpoints=checkpoints, also=also)
        write_mark(folder, FolderMark(content.run_id, content.attempt))
    except OSError as error:
        raise refused(folder, error) from error
    return damaged


def seem_running(folder: Path) -> None:
    """Hold the lock of a copy while this process looks at it, where its run is held in the store
    and has told of itself lately: so it is shown as running."""
    with suppress(StokerError, OSError):
        run = Run(folder)
        if run.is_running:
            return
        (folder / "lock").unlink(missing_ok=True)
        if summary_of(folder).state == RUNNING:
            run.lock(0.0)
            _held.append(run)


def runs_at(place: Location) -> list[Location]:
    """The runs at a location: itself, or those one level below it, by name. Raises StoreError."""
    objects = StoreClient(place)
    keys = [item.key.split("/") for item in objects.list()]
    if [KEY] in keys:
        return [place]
    return [place / parts[0] for parts in keys if parts[1:] == [KEY]]
