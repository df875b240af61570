"""RUN as a user names it: a folder, or a place in an object store, of which a copy is looked at.

Invariants: a verb that reads runs works on folders. The copy of a run in a store is brought up to
date before it is read, once by a command and not by its ranks. Nothing is imported for a folder.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stoker.errors import StokerError
from stoker.fleet.launcher import is_rank
from stoker.stores.location import Location, is_location, location_of
from stoker.text import say

LEAST_S = 5.0
"""Seconds between two looks at a store."""


def run_folder(run: str | Path, *, checkpoint: str | None = None) -> str:
    """The folder of a run: itself, or a copy with the newest and the best checkpoint, and the named
    one, where `checkpoint` is given. Raises BadRequest where there is no run, StoreError."""
    location = location_of(run)
    if location is None:
        return str(run)
    from stoker.survive.remote.open import copy_folder, local_copy

    folder = copy_folder(location)
    if is_rank() and folder.is_dir():
        return str(folder)
    return local_copy(str(location), checkpoints=checkpoint is not None, also=checkpoint or "")


def run_folders(runs: Sequence[str | Path]) -> list[str]:
    """The folders of some runs. Raises BadRequest, StoreError."""
    return [run_folder(run) for run in runs]


def folders_below(places: Sequence[Path]) -> list[Path]:
    """Folders of runs: of a location, the copies of the runs there. One that cannot be read is a
    note. Raises StoreError, BadRequest where a location has no runs."""
    folders: list[Path] = []
    for place in places:
        location = location_of(place)
        folders += [place] if location is None else copies_below(location)
    return folders


def copies_below(place: Location) -> list[Path]:
    """Copies of the runs at a location, or below it. Raises StoreError, BadRequest."""
    from stoker.errors import BadRequest
    from stoker.survive.remote.open import local_copy, runs_at

    copies = []
    for location in (locations := runs_at(place)):
        try:
            copies.append(Path(local_copy(str(location))))
        except StokerError as error:
            say(f"note: {error}", stream=sys.stderr)
    if not locations:
        raise BadRequest(f"no run at {place}, and none one level below it")
    return copies


@contextmanager
def kept_fresh(runs: Sequence[str | Path], every_s: float) -> Iterator[None]:
    """Bring the copies of runs in stores up to date again and again. A store that fails is asked
    again: what is shown stays as it was."""
    distant = [run for run in runs if is_location(run)]
    ended = threading.Event()

    def refresh() -> None:
        while not ended.wait(max(every_s, LEAST_S)):
            for run in distant:
                try:
                    run_folder(run)
                except StokerError:
                    continue

    if distant:
        threading.Thread(target=refresh, name="stoker-copies", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
