"""The checkpoints of one run: save them in the background, find the newest, prune the old.

Invariants: a committed checkpoint is never overwritten, and the newest one that reads back is never
pruned. The files `last` and `best` hold names of checkpoints; where one is missing or wrong, the
folders themselves are searched. A folder that does not read back is renamed to `STEP.torn`, one
with bad numbers to `STEP.diverged`; both are removed once the run has saved a later step. Nothing
is removed through a link: of one to a checkpoint only the link goes, and in a linked folder only
what this process saved.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.commit import remove, write_bytes
from stoker.errors import NewerFormat, StokerError
from stoker.faults import reach
from stoker.locks.lock import TakenOver
from stoker.survive.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from stoker.survive.manifest import (
    DIVERGED,
    MARKER,
    NAME,
    TORN,
    manifest_of,
    names_in,
    pointer,
    step_and_save,
    unreadable,
)

SLOWEST_S = 600.0
"""A save that takes longer counts as hanging."""


@dataclass(frozen=True)
class SaveResult:
    """A committed save and its cost."""

    name: str
    step: int
    position: int
    best: float | None
    """The accuracy, where it is the best so far; else None."""
    bytes: int
    seconds: float
    """From the start of the save to its commit, in the background; `busy_s` are CPU seconds."""
    busy_s: float


@dataclass
class Checkpoints:
    """The checkpoints of one run, saved one at a time in the background."""

    run_path: Path
    keep: int = 2
    finished: list[SaveResult] = field(default_factory=list)
    """Committed saves that have not been reported yet."""
    failures: list[StokerError] = field(default_factory=list)
    """Failed saves that have not been reported yet."""
    misfit: Callable[[Snapshot], str] = lambda snapshot: ""
    """Returns why a checkpoint cannot be one of this run; empty where it can."""
    check_place: Callable[[], None] = lambda: None
    """Called before and after each save. Raises StokerError where the run directory is gone."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why each of the checkpoints that `newest` passed over does not count."""
    _own: set[str] = field(default_factory=set)
    """The checkpoints that were written here."""
    _thread: threading.Thread | None = None

    @property
    def folder(self) -> Path:
        return self.run_path / "checkpoints"

    def names(self) -> list[str]:
        """The names of all checkpoint folders, newest first, valid or not."""
        return names_in(self.folder)

    def pointer(self, which: str) -> str | None:
        """The name in the file `last` or `best`; None where there is no valid one."""
        return pointer(self.run_path / which)

    def newest(self) -> tuple[Snapshot | None, list[str]]:
        """The newest checkpoint that reads back, and the names of newer ones that do not. Raises
        NewerFormat where a newer version wrote one of them, StokerError where the disk fails."""
        torn: list[str] = []
        for name in self.names():
            try:
                checkpoint = read_checkpoint(self.folder / name)
                if not (reason := self.misfit(checkpoint)):
                    return checkpoint, torn
            except NewerFormat:
                raise
            except StokerError as error:
                reason = str(error)
            except OSError as error:
                raise unreadable(self.folder / name, error) from error
            torn.append(name)
            self.reasons[name] = reason
        return None, torn

    def refuse_newer(self) -> None:
        """Raise NewerFormat where `newest` would; reads only manifests, so every rank can do it."""
        with suppress(OSError):  # `newest` raises it, with the name of the folder
            next((name for name in self.names() if manifest_of(self.folder / name)), None)

    def recover(self) -> tuple[Snapshot | None, list[str]]:
        """Return `newest`, set torn folders aside, repair `last` and `best`: on rank 0 only."""
        checkpoint, torn = self.newest()
        for name in torn:
            self._set_aside(name)
        if checkpoint and self.pointer("last") != checkpoint.name:
            self._point("last", checkpoint.name)
        best = self.pointer("best")
        if checkpoint and checkpoint.facts.get("is_best") and best != checkpoint.name:
            self._point("best", checkpoint.name)
        elif best and self._manifest(best) is None:
            saved = (name for name in self.names() if (self._manifest(name) or {}).get("is_best"))
            self._point("best", next(saved, None))
        return checkpoint, torn

    def _point(self, pointer: str, name: str | None) -> None:
        """Let `last` or `best` name a checkpoint; None: remove the file."""
        path = self.run_path / pointer
        try:
            path.unlink(missing_ok=True) if name is None else write_bytes(path, name.encode())
        except IsADirectoryError as error:
            raise StokerError(f"{path} is a folder, not a file: remove it") from error

    def save(self, snapshot: Snapshot, *, best: bool = False) -> None:
        """Start a save in the background, after waiting for one that is under way."""
        self.join()
        snapshot.facts["is_best"] = best
        self._thread = threading.Thread(target=self._save, args=(snapshot,), name="stoker-save")
        self._thread.start()

    def wait(self) -> None:
        """Wait until no save is under way. Raises StokerError where a save failed."""
        self.join()
        if self.failures:
            failure = self.failures[-1]
            self.failures.clear()
            raise failure

    def join(self, alive: Callable[[], None] = lambda: None) -> None:
        """Wait until no save is under way; calls `alive` each second, for SLOWEST_S at most."""
        deadline = time.monotonic() + SLOWEST_S
        while self._thread:
            self._thread.join(1.0)
            if time.monotonic() < deadline:
                alive()
            if not self._thread.is_alive():
                self._thread = None

    def _save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint, on a full disk a second time after pruning. Records the outcome."""
        try:
            try:
                self.finished.append(self._write(snapshot))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._prune(keep=1)
                self.finished.append(self._write(snapshot))
        except Exception as error:  # a thread has no caller: `wait` raises it
            failure = StokerError(f"cannot save a checkpoint in {self.folder}: {error}")
            failure.__cause__ = error
            self.failures.append(failure)

    def _check_place_after(self, name: str) -> None:
        """As `check_place`, after a checkpoint was written: another directory does not keep it."""
        try:
            self.check_place()
        except TakenOver:
            raise  # the other process may have written one of this name
        except StokerError:
            with suppress(OSError):
                remove(self.folder / name)
                self.folder.rmdir()  # where the other directory had none
            raise

    def _write(self, snapshot: Snapshot) -> SaveResult:
        self.check_place()
        began, busy = time.perf_counter(), time.thread_time()
        step, position = snapshot.facts["step"], snapshot.facts["position"]
        name = self._name_for(step)
        size = write_checkpoint(self.folder / name, snapshot)
        self._check_place_after(name)
        self._own.add(name)
        self._point("last", name)
        if snapshot.facts["is_best"]:
            self._point("best", name)
        self._prune(self.keep)
        best = snapshot.facts["best"] if snapshot.facts["is_best"] else None
        seconds, busy_s = time.perf_counter() - began, time.thread_time() - busy
        return SaveResult(name, step, position, best, size, seconds, busy_s)

    def _name_for(self, step: int) -> str:
        """A name for a save of this step that no committed checkpoint has."""
        name, count = f"{step:09d}", 1
        while self._manifest(name) is not None or (self.is_elsewhere and self._holds(name)):
            count += 1
            name = f"{step:09d}-{count}"
        return name

    @property
    def is_elsewhere(self) -> bool:
        """Whether the folder is a link: what others keep there is not removed."""
        return self.folder.is_symlink()

    def _holds(self, name: str) -> bool:
        return os.path.lexists(self.folder / name)

    def set_aside_after(self, step: int) -> None:
        """Set aside the checkpoints of later steps, which hold bad numbers. Raises NewerFormat,
        and changes nothing, where a newer version wrote one of them."""
        later = [name for name in self.names() if step_and_save(name)[0] > step]
        for name in later:
            with suppress(OSError):
                manifest_of(self.folder / name)
        for name in later:
            self._set_aside(name, DIVERGED)
        if not self.recover()[0]:
            self._point("last", None)

    def _set_aside(self, name: str, ending: str = TORN) -> None:
        """Rename a folder so that it no longer counts as a checkpoint."""
        folder, aside = self.folder / name, self.folder / f"{name}{ending}"
        try:
            remove(aside)
            folder.rename(aside)
        except OSError:  # a mount that cannot rename: without its marker it does not count
            with suppress(OSError):
                remove(folder if folder.is_symlink() else folder / MARKER)

    def _prune(self, keep: int) -> None:
        """Remove old checkpoints, and folders set aside that are older than the newest one."""
        for name in self._prunable(keep):
            folder = self.folder / name
            if not folder.is_symlink():
                # The marker first: a folder that is half removed must not count.
                remove(folder / MARKER)
                reach("prune:marker")
            remove(folder)
            reach("prune:folder")

    def _manifest(self, name: str) -> dict[str, Any] | None:
        """The manifest; empty if it cannot be read now or by this version, None if it is wrong."""
        try:
            return manifest_of(self.folder / name)
        except (OSError, NewerFormat):
            return {}

    def _prunable(self, keep: int) -> Iterator[str]:
        """Folders up to the newest checkpoint, except the `keep` newest, `last`, `best`, unread."""
        manifests = {name: self._manifest(name) for name in self.names()}
        valid = [name for name, manifest in manifests.items() if manifest]
        unread = [name for name, manifest in manifests.items() if manifest == {}]
        if not valid:
            return
        # This process committed `last`; a newer folder may have damage that its manifest hides.
        kept = {*valid[:keep], *unread, self.pointer("last"), self.pointer("best")}
        newest = step_and_save(valid[0])
        for name in [item.name for item in self.folder.iterdir()]:
            if self.is_elsewhere and name not in self._own:
                continue
            stem = name.removesuffix(TORN).removesuffix(DIVERGED)
            if name not in kept and NAME.fullmatch(stem) and step_and_save(stem) <= newest:
                yield name
