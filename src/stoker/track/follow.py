"""Follows a run until it ends: copies its curve to a sink, and tells of incidents.

Invariants: the run is only read. A look costs what was written since the last one. Following never
waits for the sink or for a command: both have processes of their own. A stop request is noticed
within a second, and ends everything within STOP_S.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.commit import sha256_json
from stoker.errors import FAILED as FAILED_CODE
from stoker.errors import FINISHED as FINISHED_CODE
from stoker.errors import BadRequest, StokerError
from stoker.history.status import RunStatus, StatusReader
from stoker.run.directory import Run
from stoker.run.listing import FAILED, FINISHED, KILLED, STOPPED
from stoker.text import plural, shown
from stoker.track.curve import AttemptStarts, committed_step
from stoker.track.feed import Feed
from stoker.track.notify import Notifier
from stoker.track.sink import FOLLOWING, SinkKind, SinkOptions, plain_value

SLICE_S = 0.25
"""The longest wait in which a stop request is not noticed."""
STOP_S = 10.0
"""Seconds for the sink after a stop request."""
GONE_LOOKS = 3
"""So many looks without a run.json: the directory was removed."""
ENVIRONMENT = ("stoker", "python", "torch", "device", "driver", "platform", "cores", "host")
"""What is copied of the environment of an attempt: not its command, which may hold secrets."""
MOST_PARAMETERS = 200

Tell = Callable[[str], None]


@dataclass(frozen=True)
class FollowOptions:
    """How long a run is followed."""

    every_s: float = 5.0
    patience_s: float = 60.0
    once: bool = False
    """Copy what there is, and end."""
    past_stops: bool = False
    """Go on while the run is stopped, until it has finished or failed."""


class Follower:
    """Follows one run."""

    def __init__(
        self,
        run: Run,
        options: FollowOptions,
        tell: Tell,
        *,
        kind: SinkKind | None = None,
        feed: Feed | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self._run, self._options, self._tell = run, options, tell
        self._kind, self._feed, self._notifier = kind, feed, notifier
        self._status, self._starts = StatusReader(run), AttemptStarts(run)
        self._missing = 0

    def follow(self, stop: Callable[[], bool]) -> int:
        """Follow until the run ends, or until `stop`; the exit code."""
        try:
            while True:
                status = self._look()
                is_over = self._is_over(status)
                if stop():
                    return self._end_early()
                if is_over:
                    return self._end(status, stop)
                self._wait(time.monotonic() + self._options.every_s, stop)
        finally:
            if self._feed:
                self._feed.end()

    def _look(self) -> RunStatus:
        self._missing = 0 if self._run.exists else self._missing + 1
        if self._missing >= GONE_LOOKS:
            raise StokerError(f"{shown(str(self._run.path))} is gone: it was moved or removed")
        status, starts = self._status.look(), self._starts.look()
        if self._notifier:
            self._notifier.look(status)
        if self._feed and (starts or self._is_over(status)):
            is_over = status.state in (FINISHED, FAILED, STOPPED, KILLED)
            has_begun = self._starts.newest == max(starts, default=0)
            self._feed.offer(starts, self._until(status), is_over or not has_begun)
        return status

    def _is_over(self, status: RunStatus) -> bool:
        """Whether there is nothing to wait for any more."""
        if self._options.once or status.state in (FINISHED, FAILED):
            return True
        return status.state in (STOPPED, KILLED) and not self._options.past_stops

    def _until(self, status: RunStatus) -> int | None:
        """The last step that may be copied; None where there is no limit."""
        if self._kind is None or self._kind.takes_back or status.state in (FINISHED, FAILED):
            return None
        return committed_step(self._run)

    def _wait(self, until: float, stop: Callable[[], bool]) -> None:
        """Serve the sink until the next look."""
        while not stop() and (left_s := until - time.monotonic()) > 0:
            if self._feed is None or not self._has_work:
                time.sleep(min(left_s, SLICE_S))
            else:
                self._feed.pump(min(left_s, SLICE_S))

    @property
    def _has_work(self) -> bool:
        return self._feed is not None and self._feed.has_work

    def _end(self, status: RunStatus, stop: Callable[[], bool]) -> int:
        """Wait for the sink until it has everything; the exit code."""
        feed, patience_s = self._feed, self._options.patience_s
        has_all = True
        if feed:
            while not feed.is_idle and time.monotonic() - feed.progress_at <= patience_s:
                if stop():
                    return self._end_early()
                feed.pump(SLICE_S)
            has_all = feed.is_idle
            held, step, points = feed.held_step, feed.step, feed.points
            has_all = has_all and feed.close(outcome_of(status), max(patience_s, 1.0))
            if has_all:
                self._tell(f"copied {plural(points, 'point')} up to step {step}: {self._place}")
            if has_all and held is not None:
                self._tell(
                    f"note: {self._place} cannot take values back: steps after {step} are copied "
                    "when a checkpoint covers them"
                )
        if self._notifier:
            self._notifier.finish()
        if has_all:
            return FINISHED_CODE
        assert feed and self._kind
        has = "it did not say up to where it has the run"
        if feed.step is not None:
            has = f"it has the run up to step {feed.step} of {status.step}"
        reason = f" ({feed.problem})" if feed.problem else ""
        self._tell(
            f"{self._place} did not take everything within {patience_s:g} s{reason}: {has}. "
            f"{self._kind.rest}"
        )
        return FAILED_CODE

    def _end_early(self) -> int:
        """Finish what is under way after a stop request; the exit code."""
        until = time.monotonic() + STOP_S
        feed = self._feed
        if feed:
            feed.withdraw()
            while feed.is_busy and time.monotonic() < until - STOP_S / 2:
                feed.pump(SLICE_S)
            feed.close(FOLLOWING, max(until - time.monotonic() - 1.0, 0.0))
            where = "" if feed.step is None else f" at step {feed.step}"
            self._tell(f"stopped{where}: the same command goes on from there")
        else:
            self._tell("stopped: the same command goes on")
        return FINISHED_CODE

    @property
    def _place(self) -> str:
        return self._kind.title if self._kind else ""


def outcome_of(status: RunStatus) -> str:
    """How a sink records the end of a run."""
    outcomes = {FINISHED: FINISHED, FAILED: FAILED, STOPPED: STOPPED, KILLED: STOPPED}
    return outcomes.get(status.state, FOLLOWING)


def await_run(run: Run, tell: Tell, stop: Callable[[], bool], every_s: float) -> bool:
    """Wait until a run exists. Returns whether it does; False after a stop request. Raises
    BadRequest where there is something else in its place."""
    path = run.path
    is_waiting = False
    while not run.exists:
        if not path.resolve().parent.is_dir():
            raise BadRequest(f"no run at {shown(str(path))}, and no folder for it")
        if path.exists() and not (path.is_dir() and may_become_run(path)):
            raise BadRequest(f"{shown(str(path))} is not a run (no run.json)")
        if not is_waiting:
            tell(f"waits for {shown(str(path))}: there is no run yet")
            is_waiting = True
        until = time.monotonic() + every_s
        while time.monotonic() < until:
            if stop():
                return False
            time.sleep(min(SLICE_S, every_s))
    return True


def may_become_run(path: Path) -> bool:
    """Whether a folder without run.json may be that of a run which is just being made."""
    try:
        names = {item.name for item in path.iterdir() if not item.name.startswith(".")}
    except OSError:
        return False
    return not names or bool(names & {"lock", "recipe.toml", "run.json"})


def options_of(
    run: Run, *, out: str = "", uri: str = "", project: str = "", offline: bool = False
) -> SinkOptions:
    """What a sink is told of a run. Raises BadRequest where run.json is damaged."""
    record = run.record
    path = run.path.resolve()
    identity = [str(path), record["fingerprint"], record["data"], record["recipe"]]
    return SinkOptions(
        run_id=f"stoker-{sha256_json(identity)[:16]}",
        name=plain_value(path.name, 200),
        out=out,
        uri=uri,
        project=project,
        offline=offline,
        parameters=parameters_of(run.values),
        tags=tags_of(run, record),
    )


def parameters_of(values: Mapping[str, Any]) -> dict[str, str]:
    """The values of a recipe as text."""
    return {
        plain_value(str(name), 100): plain_value(
            value if isinstance(value, str) else json.dumps(value)
        )
        for name, value in list(values.items())[:MOST_PARAMETERS]
    }


def tags_of(run: Run, record: Mapping[str, Any]) -> dict[str, str]:
    """Facts about a run: its data set, its model, and where its newest attempt runs."""
    tags = {
        "dataset": Path(record["data"]).name,
        "fingerprint": record["fingerprint"],
        "classes": str(len(record["classes"])),
        "model": str(record["values"]["model"]),
        "recipe": record["recipe"],
    }
    starts = run.starts()
    environment = starts[-1]["environment"] if starts else {}
    tags |= {k: str(environment[k]) for k in ENVIRONMENT if environment.get(k) not in (None, "")}
    return {name: plain_value(value, 200) for name, value in tags.items()}
