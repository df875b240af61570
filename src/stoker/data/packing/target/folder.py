"""A pack into a folder of this machine, or of a disk that machines share.

Invariant: the lock of the folder is held while anything is written: one process at a time packs
into it, or several that write different shards.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.commit import write_json
from stoker.data.dataset import Dataset
from stoker.data.packing.shard import Parts, ShardTask
from stoker.data.packing.target.part import part_path
from stoker.data.packing.target.target import SPLITS, Note, refuse_foreign, shards_of, tables_of
from stoker.data.seal import SOURCE_CACHE
from stoker.errors import BadRequest
from stoker.locks.lock import WITHOUT_LOCKS, FolderLock, locked

_held: dict[Path, FolderLock] = {}
"""The locks that this process holds."""


@dataclass(frozen=True)
class FolderTarget:
    """A folder: a PackTarget."""

    work: Path
    is_stored = False

    @property
    def name(self) -> str:
        return str(self.work)

    @property
    def out(self) -> str:
        return str(self.work)

    @property
    def exists(self) -> bool:
        return self.work.exists()

    @property
    def is_packed(self) -> bool:
        return Dataset.is_packed(self.work)

    def require_own(self) -> None:
        if self.work.exists() and not self.work.is_dir():
            raise BadRequest(f"{self.work} is a file: name a folder to pack into")
        refuse_foreign(self.name, self._names(), "folder")

    def _names(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.work):
            for name in [*folders, *files]:
                yield (Path(folder) / name).relative_to(self.work).as_posix()

    @contextmanager
    def held(self, *, shared: bool = False) -> Iterator[None]:
        """Where leases are used, one that comes later does not see those that share it."""
        self.work.mkdir(parents=True, exist_ok=True)
        with shared_lock(self.work) if shared else locked(self.work) as lock:
            _held[self.work] = lock
            try:
                yield
            finally:
                _held.pop(self.work, None)  # threads may share it

    def note(self) -> Note:
        try:
            return note_of((self.work / SOURCE_CACHE).read_bytes())
        except OSError:
            return {}

    def write_note(self, note: Note) -> None:
        write_json(self.work / SOURCE_CACHE, note)

    def claim(self, root: str | None, request: str) -> None:
        """The unfinished shards of another folder are removed."""
        if root is None:
            return
        if self.note().get("root") not in (None, root):
            shutil.rmtree(self.work / ".parts", ignore_errors=True)
        self.write_note({"root": root})

    def planned(self, tasks: Iterator[ShardTask]) -> Iterator[ShardTask]:
        return tasks

    def parts(self, counts: Mapping[str, int]) -> Parts:
        return {
            split: [part_path(self.work, split, number) for number in range(count)]
            for split, count in counts.items()
        }

    def commit(self, description: dict[str, Any]) -> bool:
        if self.work in _held:
            _held[self.work].require()
        self._remove_other_shards(description)
        write_json(self.work / "dataset.json", description)
        self.clear_up()
        return True

    def _remove_other_shards(self, description: dict[str, Any]) -> None:
        """Remove shards of an interrupted pack with other settings, which a reader of `*.tar`
        reads."""
        listed = {*shards_of(description), *tables_of(description)}
        for split in SPLITS:
            folder = self.work / split
            for file in [*folder.glob("*.tar"), *folder.glob("*.parquet"), *folder.glob("rows/*")]:
                if file.relative_to(self.work).as_posix() not in listed:
                    file.unlink()
            with suppress(OSError):
                (folder / "rows").rmdir()  # only succeeds where it is empty
            if split not in description["splits"] and (self.work / split).is_dir():
                shutil.rmtree(self.work / split)

    def clear_up(self) -> None:
        """Remove the parts of a committed set, and the temporary files of killed workers."""
        shutil.rmtree(self.work / ".parts", ignore_errors=True)
        for draft in (
            path for below in ("", "*/", "*/rows/") for path in self.work.glob(f"{below}.*.tmp")
        ):
            draft.unlink(missing_ok=True)

    def withdraw(self, *, everything: bool) -> None:
        if everything:
            shutil.rmtree(self.work, ignore_errors=True)
        with suppress(OSError):
            self.work.rmdir()  # only succeeds where it is empty


@contextmanager
def shared_lock(folder: Path) -> Iterator[FolderLock]:
    """Wait until no other process holds the lock alone; where leases are used, no longer."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    lock = FolderLock(folder, handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            lock.wait()
            lock.release()
        yield lock
    finally:
        os.close(handle)


def note_of(data: bytes) -> Note:
    """A note from its text; empty where it is none."""
    try:
        note = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}
