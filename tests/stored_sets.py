"""Packed sets in a real store: what is there, when it was written, and commands that use it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from object_store import Server
from stoker.commit import sha256_of
from stoker.data.seal import CACHES
from stoker.faults import VARIABLE
from stoker.stores.client import StoreClient
from stoker.stores.location import Location, location_of


def enter(server: Server, bucket: str, cache: Path, patch: pytest.MonkeyPatch) -> str:
    """Give this process the variables of a server and a cache; returns a location for a set."""
    pytest.importorskip("obstore", reason="no obstore: pip install obstore")
    for name, value in server.variables.items():
        patch.setenv(name, value)
    patch.setenv("STOKER_CACHE", str(cache))
    return f"s3://{bucket}/sets/one"


def place_of(location: str) -> Location:
    place = location_of(location)
    assert place is not None
    return place


def client_at(location: str) -> StoreClient:
    return StoreClient(place_of(location))


def stored(location: str) -> dict[str, str]:
    """The hash of every object below a location; caches belong to no set."""
    client = client_at(location)
    keys = [found.key for found in client.list() if found.key not in CACHES]
    return {key: sha256_of(client.read(key)[0]) for key in keys}


def copied(folder: Path, location: str) -> None:
    """Write every file of a folder to a location, as another tool would."""
    client = client_at(location)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.write(path.relative_to(folder).as_posix(), path.read_bytes())


def shard_times(location: str) -> dict[str, datetime]:
    """When each shard was written."""
    import obstore

    store: Any = client_at(location)._connection.store
    listed = [meta for chunk in obstore.list(store) for meta in chunk]
    return {meta["path"]: meta["last_modified"] for meta in listed if meta["path"][-4:] == ".tar"}


def started(*words: str | Path, cache: Path, faults: tuple[dict[str, Any], ...] = ()) -> Any:
    """A `stoker` command in a process group of its own, with a cache and faults of its own."""
    variables = {**os.environ, "STOKER_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}
    variables[VARIABLE] = json.dumps(faults)
    return subprocess.Popen(
        [sys.executable, "-m", "stoker", *map(str, words)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=variables,
    )
