"""What a pack asks of its target: a folder of this machine, or a location in an object store.

Invariants: a target is a set when its `dataset.json` is there, which is written last. Before that
it holds only what OWN_FILES names. Everything that is not a shard is made in a folder of this
machine first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from stoker.data.index.shard_table import shard_names, table_names
from stoker.data.packing.shard import Parts, ShardTask
from stoker.errors import BadRequest

OWN_FILES = re.compile(
    r"\.(parts|lock)(/.*)?|(.*/)?\.[^/]*\.tmp|(rejected|near_duplicates)\.parquet|\.walk\.parquet|\.source\.json"
    r"|\.conditions-[0-9a-f]+|(train|val|test)(/(\d{5,}\.tar|(index|shards)\.parquet|rows(/\d{5,}\.parquet)?))?"
)
"""Names that a pack leaves in its target before it is committed."""
SPLITS = ("train", "val", "test")

Note = dict[str, Any]
"""What is known of the source that was packed: see `seal.SOURCE_CACHE`."""


class PackTarget(Protocol):
    """Where a pack goes. Methods of a target in a store raise StoreError where it fails."""

    @property
    def name(self) -> str:
        """The folder or the location, for messages and for `Dataset`."""

    @property
    def out(self) -> str:
        """The folder or the location as a task names it."""

    @property
    def work(self) -> Path:
        """The folder of this machine for the stage, the parts and the tables: it exists once this
        was asked in a pack that may write."""

    @property
    def is_stored(self) -> bool:
        """Whether it is in a store."""

    @property
    def exists(self) -> bool:
        """Whether anything is there."""

    @property
    def is_packed(self) -> bool:
        """Whether a set is there."""

    def require_own(self) -> None:
        """Raise BadRequest where it holds files that no unfinished pack can have left."""

    def held(self, *, shared: bool = False) -> AbstractContextManager[None]:
        """One process of this machine at a time packs into it, others wait. Those that share it
        write different shards."""

    def note(self) -> Note:
        """The note on the source that was packed here before; empty where there is none."""

    def write_note(self, note: Note) -> None:
        """Note the source of a set."""

    def claim(self, root: str | None, request: str) -> None:
        """Note the source, as hex digits, of the shards that are about to be written, so that none
        of another source or request is taken for one of them. Raises BadRequest."""

    def planned(self, tasks: Iterator[ShardTask]) -> Iterator[ShardTask]:
        """The tasks, with what is known of their shards that are there."""

    def parts(self, counts: Mapping[str, int]) -> Parts:
        """The part files of the shards, of which each split has this count, on this machine. Raises
        StokerError where a shard is not the one that its part names."""

    def commit(self, description: dict[str, Any]) -> bool:
        """Make it the set of this description, whose tables are in `work`; whether it was done.
        False: another process has made it a set."""

    def clear_up(self) -> None:
        """Remove what a pack leaves beside a committed set."""

    def withdraw(self, *, everything: bool) -> None:
        """Remove an empty folder, or everything that a pack has written."""


def refuse_foreign(name: str, files: Iterator[str], kind: str) -> None:
    """Raise BadRequest where a name of `files` is none that an unfinished pack leaves."""
    for file in files:
        if file == "dataset.json":
            return  # another process has just finished the set: the caller looks again
        if not OWN_FILES.fullmatch(file):
            example = file if kind == "location" else file.rpartition("/")[2]
            raise BadRequest(
                f"{name} is neither empty nor a packed set (it holds {example}): "
                f"name a new {kind} to pack into"
            )


def tables_of(description: Mapping[str, Any]) -> list[str]:
    """The names of the tables of a set."""
    splits = description["splits"].items()
    names = [f"{split}/{name}" for split, facts in splits for name in table_names(facts)]
    extra = [name for name in ("rejected", "near_duplicates") if f"{name}_sha256" in description]
    return [*names, *(f"{name}.parquet" for name in extra)]


def shards_of(description: Mapping[str, Any]) -> list[str]:
    """The names of the shards of a set."""
    splits = description["splits"].items()
    return [f"{split}/{name}" for split, facts in splits for name in shard_names(facts)]
