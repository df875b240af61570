"""Where the cache of fetched files is, how much it may take, and how long a store may fail.

STOKER_CACHE=FOLDER       the folder [$XDG_CACHE_HOME/stoker, else ~/.cache/stoker]
STOKER_CACHE_GB=N         at most N GB; 0: nothing is cached
                          [half of what is free on its disk]
STOKER_STORE_PATIENCE_S=N a request that fails for N seconds is given up [300]
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stoker.errors import BadRequest
from stoker.stores.cache import FileCache
from stoker.stores.location import Location, location_of
from stoker.stores.patience import PATIENCE_S
from stoker.text import shown

FOLDER, LIMIT, PATIENCE = "STOKER_CACHE", "STOKER_CACHE_GB", "STOKER_STORE_PATIENCE_S"
FREE_SHARE = 0.5
GB = 10**9


def cache_folder(variables: Mapping[str, str] = os.environ) -> Path:
    """The folder of the cache, which need not exist. Raises BadRequest where there is no home."""
    try:
        if named := variables.get(FOLDER):
            return Path(named).expanduser().absolute()
        base = variables.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    except RuntimeError as error:  # a user without a name, or an unknown `~name`
        raise BadRequest(f"no home folder: name a folder for the cache with {FOLDER}") from error
    return Path(base).absolute() / "stoker"


def cache_limit(cache: Path, variables: Mapping[str, str] = os.environ) -> int | None:
    """Bytes that the cache may take; None: as many as `open_cache` finds. Raises BadRequest."""
    text = variables.get(LIMIT, "")
    if not text:
        return None
    try:
        limit_gb = float(text)
    except ValueError:
        limit_gb = -1.0
    if not 0 <= limit_gb < 1e9:
        raise BadRequest(f"{LIMIT}={text!r}: give a number of GB, 0 for no cache of {cache}")
    return int(limit_gb * GB)


def note_named(location: Location) -> None:
    """Note that a command was given this location: `was_named` is true for it from now on."""
    with suppress(OSError):
        note = _note_of(location)
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def was_named(place: str) -> bool:
    """Whether a set may be read that the file of a run names: it is a folder, or a command of this
    user on this machine was given a location in its bucket (for a web server: the same one). A
    request with credentials goes to no other place. Raises BadRequest as `location_of` does."""
    location = location_of(place)
    return location is None or _note_of(location).exists()


def _note_of(location: Location) -> Path:
    place = location if location.is_web else Location(location.scheme, location.root)
    return cache_folder() / "named" / place.digest


def open_cache(variables: Mapping[str, str] = os.environ) -> FileCache:
    """The cache of this user on this machine. Raises BadRequest where it cannot be used."""
    folder = cache_folder(variables)
    limit = cache_limit(folder, variables)
    cache = FileCache(folder, limit or 0)
    if limit is None:
        free = shutil.disk_usage(folder).free
        cache.limit_bytes = int(FREE_SHARE * (free + cache.bytes_used))
    return cache


def store_patience(variables: Mapping[str, str] = os.environ) -> float:
    """Seconds for which a request may fail before it is given up. Raises BadRequest."""
    return seconds_of(PATIENCE, PATIENCE_S, 0.1, variables)


def seconds_of(variable: str, usual: float, least: float, variables: Mapping[str, str]) -> float:
    """The seconds that a variable sets, at most a day. Raises BadRequest."""
    text = variables.get(variable, "")
    if not text:
        return usual
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not least <= seconds <= 86400:
        raise BadRequest(
            f"{variable}={shown(text)}: give a number of seconds from {least:g} to 86400"
        )
    return seconds
