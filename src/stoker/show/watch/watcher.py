"""Follows runs: each look returns what a screen shows of them.

Invariants: nothing is written and no lock is kept. A look never raises: a run that is missing,
damaged, removed or replaced says so in its notice. The first look costs what rank 0 wrote, however
many ranks there are; each later one what was written since.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stoker.history.history import RunFollower, RunHistory
from stoker.history.verdict import verdict_of_run
from stoker.run.directory import Run
from stoker.run.listing import RUNNING, name_of, runs_below
from stoker.show.watch.checkpoint_text import CheckpointReader
from stoker.show.watch.screen_data import (
    GONE,
    UNREADABLE,
    WAITING_FOR,
    CurveSet,
    Findings,
    WatchedRun,
    curves_of,
    unavailable,
    watched,
)
from stoker.text import shown

MOST_RUNS = 12
"""Runs of a folder that are shown."""
FEWEST_STEPS = 50
"""Steps from which a verdict is computed where the run has given none."""
RENEW_AFTER = 1000
"""Looks after which a run is read afresh: each look adds rows, a summary has far fewer."""


class RunWatcher:
    """Follows one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        is_cell = (path.parent.name, path.name) == ("work", "run")
        self._name = shown(name_of(path)) if is_cell else ""
        self._shown: WatchedRun | None = None
        self._notice = ""
        self._open()

    def _open(self) -> None:
        run = Run(self.path)
        run.hold()
        self._follower = RunFollower(run, ranks=lambda rank: rank == 0)
        self._checkpoints = CheckpointReader(self.path)
        self._curves, self._curves_of = CurveSet(), (-1, -1, -1)
        self._verdict: tuple[str, ...] = ()
        self._judged = 0
        """Steps of the run when its verdict was computed."""
        self._looks = 0

    def look(self, now: float | None = None) -> WatchedRun:
        """The run as it is now; as it was before, with a notice, where it cannot be read."""
        now = time.time() if now is None else now
        try:
            self._shown = self._look(now)
        except Exception as error:
            # Whatever a file holds, the screen goes on and says what is wrong.
            notice = f"cannot be read: {error}"
            self._shown = self._with_notice(UNREADABLE, notice)
        return self._shown

    def _look(self, now: float) -> WatchedRun:
        run = self._follower.run
        if not run.exists:
            name = shown(str(self.path))
            if self._shown is None or self._shown.state == WAITING_FOR:
                return unavailable(self.path, WAITING_FOR, f"waiting for {name}: no run yet")
            return self._with_notice(GONE, f"{name} was removed or moved: this is the last look")
        if not run.is_in_place:
            self._notice = "this is another run than before: it was replaced"
            self._open()
        elif self._looks >= RENEW_AFTER or (self._shown and self._shown.state == WAITING_FOR):
            self._open()
        self._looks += 1
        history = self._follower.look()
        return watched(history, self._findings(history, now), now)

    def _findings(self, history: RunHistory, now: float) -> Findings:
        version = id(history), len(history.points), len(history.evaluations)
        if version != self._curves_of:
            self._curves, self._curves_of = curves_of(history), version
        return Findings(
            name=self._name,
            checkpoint=self._checkpoints.text(history, now),
            verdict=self._judge(history, now),
            notice=self._notice,
            curves=self._curves,
        )

    def _judge(self, history: RunHistory, now: float) -> tuple[str, ...]:
        """The verdict where the run has given none: computed once, and again when it has made
        twice the steps."""
        if any(event["lines"] for event in history.verdicts):
            return ()
        least = max(FEWEST_STEPS, 2 * self._judged) if history.state(now) == RUNNING else 1
        if history.steps >= least and history.steps != self._judged:
            self._judged = history.steps
            verdict = verdict_of_run(history.run)
            self._verdict = tuple(verdict.lines()) if verdict else ()
        return self._verdict

    def _with_notice(self, state: str, notice: str) -> WatchedRun:
        """What was shown last, with a notice above it."""
        blank = unavailable(self.path, state, notice)
        if self._shown is None:
            return blank
        return replace(self._shown, state=state, state_text=state, notice=blank.notice)


class RunsWatcher:
    """Follows several runs, or all in folders: also those that begin later."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._watchers: dict[Path, RunWatcher] = {}
        self.note = ""
        """That some runs of a folder are left out; empty where none is."""

    def paths(self) -> list[Path]:
        """The runs as of now."""
        self.note, paths, total = "", list[Path](), 0
        for path in self._paths:
            runs: list[Path] = []
            with suppress(OSError):
                runs = list(runs_below(path))
            if len(runs) > MOST_RUNS:
                total += len(runs)
                self.note = f"newest {MOST_RUNS} of {total:,}"
                runs = sorted(sorted(runs, key=changed_at)[-MOST_RUNS:])
            paths += runs or [path]
        return list(dict.fromkeys(paths))

    def looks(self, now: float | None = None) -> Iterator[WatchedRun]:
        """A look at each run, one after the other."""
        paths = self.paths()
        self._watchers = {path: self._watchers.get(path) or RunWatcher(path) for path in paths}
        for watcher in self._watchers.values():
            yield watcher.look(now)


def changed_at(path: Path) -> float:
    """When something was last written in a run, as far as its folders tell."""
    times = [0.0]
    with suppress(OSError, ValueError):
        times.append(path.stat().st_mtime)
        attempts = Run(path).attempts()[-1:]
        times += [os.stat(Run(path).events_path(n, 0)).st_mtime for n in attempts]  # noqa: PTH116
    return max(times)
