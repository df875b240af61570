"""A run in an object store, and the folder of this machine in which it is trained.

Invariants: everything that trains or shows a run works on a folder. For a run in a store that
folder is a copy on this machine, which may be deleted when no process uses it. Which location it
belongs to is known from the command that a user typed, never from the folder itself: a folder from
elsewhere cannot send anything anywhere.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from stoker.errors import BadRequest
from stoker.fleet.signed_store import KEY_BYTES
from stoker.stores.location import Location, location_of
from stoker.stores.objects import Conflict, Missing, Objects
from stoker.stores.settings import cache_folder

VARIABLE = "STOKER_RUN_STORE"
"""Names the location for the ranks that a command starts."""


def working_folder(location: Location) -> Path:
    """The folder of this machine for a run in a store."""
    return cache_folder() / "runs" / location.digest


def run_location(text: str | os.PathLike[str] | None) -> Location | None:
    """The location that `--run` names; None for a folder. Raises BadRequest where no run can be
    written there."""
    location = location_of(text) if text else None
    if location is not None and location.is_web:
        raise BadRequest(
            f"{location}: a run cannot be kept on a web server; use s3://, gs:// or az://"
        )
    return location


def bind(location: Location) -> Path:
    """Have this process, and those that it starts, train the run of a location; its folder."""
    os.environ[VARIABLE] = str(location)
    return working_folder(location)


def bound_location(folder: Path) -> Location | None:
    """The location whose run is trained in a folder; None where it is a folder of its own."""
    location = location_of(os.environ.get(VARIABLE) or "")
    return location if location and working_folder(location) == folder.absolute() else None


def share_key(objects: Objects, path: Path) -> None:
    """Have the key with which the machines of a run sign their messages: from the store, or made by
    the first machine that needs it. Raises StoreError."""
    try:
        key, _ = objects.read(path.name, KEY_BYTES)
    except Missing:
        key = secrets.token_bytes(KEY_BYTES)
        try:
            objects.create(path.name, key)
        except Conflict:
            key, _ = objects.read(path.name, KEY_BYTES)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(key)
