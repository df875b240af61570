"""The last valid checkpoint of a run, in words.

Invariants: only plain files are opened, so that no pipe makes a reader wait. Weights are not read:
a checkpoint counts here where its manifest is committed and its files have their sizes.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import NewerFormat
from stoker.history.history import RunHistory
from stoker.host.plain_file import LARGEST_JSON
from stoker.run.listing import RUNNING
from stoker.run.rows import time_of
from stoker.survive.manifest import MARKER, manifest_of, names_in, pointer
from stoker.text import clock, plural, size

MOST_TRIED = 8
"""Checkpoints that are looked at, the newest first, where some are incomplete."""


@dataclass(frozen=True)
class LastCheckpoint:
    """A committed checkpoint."""

    name: str
    step: int
    bytes: int
    time: float
    """When it was committed, in seconds since 1970."""


class CheckpointReader:
    """Finds the last valid checkpoint of a run. One that was valid is not read again."""

    def __init__(self, run_path: Path) -> None:
        self._run_path, self._folder = run_path, run_path / "checkpoints"
        self._known: tuple[tuple[int, ...], LastCheckpoint] | None = None

    def text(self, history: RunHistory, now: float) -> str:
        """Step, size and age of the last valid checkpoint, and how many steps came later."""
        try:
            last = self.last()
        except NewerFormat:
            return "written by a newer version of Stoker, which this one cannot read"
        except OSError as error:
            return f"cannot be read ({error.strerror or error})"
        if last is None:
            if not history.steps or history.state(now) != RUNNING:
                return "none"
            return "none yet: a kill now loses everything"
        times = {e["name"]: time_of(e) for e in history.checkpoints}
        age_s = max(now - (times.get(last.name) or last.time), 0.0)
        later = history.steps - last.step
        loss = f"; {plural(later, 'later step')} not saved" if later > 0 else ""
        return f"step {last.step:,}, saved {clock(age_s)} ago, {size(last.bytes)}{loss}"

    def last(self) -> LastCheckpoint | None:
        """The newest valid checkpoint; None where there is none. Raises NewerFormat and OSError."""
        for name in self._names()[:MOST_TRIED]:
            folder = self._folder / name
            if not (identity := identity_of(folder)):
                continue
            if self._known and self._known[0] == identity and self._known[1].name == name:
                return self._known[1]
            if manifest := manifest_of(folder):
                files = manifest["files"].values()
                committed = (folder / MARKER).stat().st_mtime
                count = sum(file["bytes"] for file in files)
                last = LastCheckpoint(name, int(manifest.get("step", 0)), count, committed)
                self._known = identity, last
                return last
        return None

    def _names(self) -> list[str]:
        """The name in the file `last`, then all others, newest first."""
        names = names_in(self._folder)
        if name := pointer(self._run_path / "last"):
            return [name, *(other for other in names if other != name)]
        return names


def identity_of(folder: Path) -> tuple[int, ...] | None:
    """Inode, size and time of the manifest; None where it or the marker is no plain file of a
    reasonable size."""
    numbers: list[int] = []
    for name in ("manifest.json", MARKER):
        with suppress(OSError):
            facts = os.stat(folder / name)  # noqa: PTH116
            if stat.S_ISREG(facts.st_mode) and facts.st_size <= LARGEST_JSON:
                numbers += [facts.st_ino, facts.st_size, facts.st_mtime_ns]
    return tuple(numbers) if len(numbers) == 6 else None
