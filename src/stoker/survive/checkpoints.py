"""The checkpoints of one run: saved in the background, found again, pruned.

Invariants: what counts is never written over, and the newest that reads back whole is never pruned.
`last` and `best` are names in small files; where they are missing or point at something torn, the
newest valid folder is found by looking. A folder that does not read back is set aside under the
name `STEP.torn` (`STEP.diverged` where its numbers are bad), and goes when the run has saved beyond
it.
"""

from __future__ import annotations

import errno
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.commit import write_bytes
from stoker.errors import NewerFormat, StokerError
from stoker.faults import reach
from stoker.survive.checkpoint import (
    MARKER,
    Snapshot,
    manifest_of,
    read_checkpoint,
    write_checkpoint,
)

NAME = re.compile(r"\d{9,}(-\d+)?")
SLOWEST_S = 600.0
"""A save that takes longer than this is not alive any more."""
TORN, DIVERGED = ".torn", ".diverged"


@dataclass(frozen=True)
class Saved:
    """What one save cost."""

    name: str
    step: int
    position: int
    best: float | None
    """The result that made it the best so far, where it did."""
    bytes: int
    seconds: float
    """From its beginning to its commit, in the background."""
    busy_s: float
    """Seconds of a core."""


def step_and_save(name: str) -> tuple[int, int]:
    """What a checkpoint's name says: its step, and the how-manieth save of that step it is."""
    step, _, again = name.partition("-")
    return int(step), int(again or 1)


@dataclass
class Checkpoints:
    """The checkpoints of one run, saved one at a time in the background."""

    run_path: Path
    keep: int = 2
    finished: list[Saved] = field(default_factory=list)
    """Saves that have been committed since somebody last looked."""
    failures: list[StokerError] = field(default_factory=list)
    """Saves that could not be made since somebody last looked."""
    _thread: threading.Thread | None = None

    @property
    def folder(self) -> Path:
        return self.run_path / "checkpoints"

    def names(self) -> list[str]:
        """All checkpoint folders, newest first, valid or not."""
        found = (name for name in self._entries() if NAME.fullmatch(name))
        return sorted(found, key=step_and_save, reverse=True)

    def _entries(self) -> list[str]:
        return [item.name for item in self.folder.iterdir()] if self.folder.is_dir() else []

    def pointer(self, which: str) -> str | None:
        """The checkpoint that `last` or `best` names."""
        try:
            name = (self.run_path / which).read_text().strip()
        except (OSError, ValueError):
            return None
        return name if NAME.fullmatch(name) else None

    def newest(self) -> tuple[Snapshot | None, list[str]]:
        """The newest checkpoint that reads back whole, and the names of newer ones that do not.
        Raises NewerFormat where one of those was written by a newer version: it is not torn."""
        torn: list[str] = []
        for name in self.names():
            try:
                return read_checkpoint(self.folder / name), torn
            except NewerFormat:
                raise
            except StokerError:
                torn.append(name)
            except OSError as error:
                raise StokerError(
                    f"cannot read {self.folder / name}: {error}; try again, or remove that folder "
                    "to go on from the checkpoint before"
                ) from error
        return None, torn

    def refuse_newer(self) -> None:
        """Raise NewerFormat where `newest` would. Manifests alone are read, so that every rank can
        refuse before an attempt begins."""
        with suppress(OSError):  # `newest` names the folder that cannot be read
            next((name for name in self.names() if manifest_of(self.folder / name)), None)

    def recover(self) -> tuple[Snapshot | None, list[str]]:
        """The same, for the process that will save: torn folders are set aside, and pointers that
        a kill left behind are mended."""
        found, torn = self.newest()
        for name in torn:
            self._set_aside(name)
        if found and self.pointer("last") != found.name:
            write_bytes(self.run_path / "last", found.name.encode())
        if found and found.facts.get("is_best") and self.pointer("best") != found.name:
            write_bytes(self.run_path / "best", found.name.encode())
        self._mend_best()
        return found, torn

    def save(self, snapshot: Snapshot, *, best: bool = False) -> None:
        """Save in the background; waits for a save that is still under way."""
        self.join()
        snapshot.facts["is_best"] = best
        self._thread = threading.Thread(target=self._save, args=(snapshot,), name="stoker-save")
        self._thread.start()

    def wait(self) -> None:
        """Until the save under way is committed. A save that failed is raised here."""
        self.join()
        if self.failures:
            failure = self.failures[-1]
            self.failures.clear()
            raise failure

    def join(self, alive: Callable[[], None] = lambda: None) -> None:
        """Until no save is under way, however it went."""
        give_up = time.monotonic() + SLOWEST_S
        while self._thread:
            self._thread.join(1.0)
            if time.monotonic() < give_up:
                alive()
            if not self._thread.is_alive():
                self._thread = None

    def _save(self, snapshot: Snapshot) -> None:
        """Write, on a full disk once more with room made, and note how it went."""
        try:
            try:
                self.finished.append(self._write(snapshot))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._prune(keep=1)
                self.finished.append(self._write(snapshot))
        except Exception as error:  # the saving thread has nobody to raise to
            failure = StokerError(f"cannot save a checkpoint in {self.folder}: {error}")
            failure.__cause__ = error
            self.failures.append(failure)

    def _write(self, snapshot: Snapshot) -> Saved:
        began, busy = time.perf_counter(), time.thread_time()
        step, position = snapshot.facts["step"], snapshot.facts["position"]
        name = self._name_for(step)
        size = write_checkpoint(self.folder / name, snapshot)
        write_bytes(self.run_path / "last", name.encode())
        if snapshot.facts["is_best"]:
            write_bytes(self.run_path / "best", name.encode())
        self._prune(self.keep)
        best = snapshot.facts["best"] if snapshot.facts["is_best"] else None
        seconds, busy_s = time.perf_counter() - began, time.thread_time() - busy
        return Saved(name, step, position, best, size, seconds, busy_s)

    def _name_for(self, step: int) -> str:
        """A name that no committed checkpoint has: what counts is never written over."""
        name, again = f"{step:09d}", 1
        while self._manifest(name) is not None:
            again += 1
            name = f"{step:09d}-{again}"
        return name

    def set_aside_after(self, step: int) -> None:
        """Set aside what was saved after the steps before this one: it holds bad numbers."""
        for name in self.names():
            if step_and_save(name)[0] > step:
                self._set_aside(name, DIVERGED)
        if not self.recover()[0]:
            (self.run_path / "last").unlink(missing_ok=True)

    def _set_aside(self, name: str, why: str = TORN) -> None:
        """Give a folder a name under which nobody takes it for a checkpoint."""
        aside = self.folder / f"{name}{why}"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            (self.folder / name).rename(aside)
        except OSError:  # where nothing can be renamed it stays, without its marker
            with suppress(OSError):
                (self.folder / name / MARKER).unlink(missing_ok=True)

    def _mend_best(self) -> None:
        """Let `best` name the newest that was the best when it was saved, or nothing."""
        best = self.pointer("best")
        if best is None or self._manifest(best) is not None:
            return
        former = [name for name in self.names() if (self._manifest(name) or {}).get("is_best")]
        if former:
            write_bytes(self.run_path / "best", former[0].encode())
        else:
            (self.run_path / "best").unlink(missing_ok=True)

    def _prune(self, keep: int) -> None:
        """Remove all but the newest few, the last and the best, and what is torn and overtaken."""
        for name in self._unwanted(keep):
            # The marker first: a half-removed folder must not look whole.
            (self.folder / name / MARKER).unlink(missing_ok=True)
            reach("prune:marker")
            shutil.rmtree(self.folder / name)
            reach("prune:folder")

    def _manifest(self, name: str) -> dict[str, Any] | None:
        """The manifest of a checkpoint; nothing is in it where it cannot be read just now, or only
        by a newer version."""
        try:
            return manifest_of(self.folder / name)
        except (OSError, NewerFormat):
            return {}

    def _unwanted(self, keep: int) -> Iterator[str]:
        valid = [name for name in self.names() if self._manifest(name)]
        unread = [name for name in self.names() if self._manifest(name) == {}]
        if not valid:
            return
        # `last` was committed by us; a newer folder may be damaged without looking so.
        wanted = {*valid[:keep], *unread, self.pointer("last"), self.pointer("best")}
        newest = step_and_save(valid[0])
        for name in self._entries():
            stem = name.removesuffix(TORN).removesuffix(DIVERGED)
            if name not in wanted and NAME.fullmatch(stem) and step_and_save(stem) <= newest:
                yield name
