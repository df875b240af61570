"""Run a command when a run ends, stalls or fails.

Invariants: the command is started as a list of words, never by a shell. What is known of the run is
in its environment, never in its words. It has COMMAND_S seconds, and following does not wait for
it. Each incident is told of once: incidents from before the tracker began are not, except an end.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.commit import write_json
from stoker.history.status import RunStatus
from stoker.host.plain_file import read_plain
from stoker.run.listing import FAILED, FINISHED, KILLED, RUNNING, STOPPED
from stoker.run.rows import time_of
from stoker.text import clock, one_line, printable, shown

COMMAND_S = 60.0
QUIET_S, LONG_S = 300.0, 900.0
"""Seconds without progress that are a stall; the longer ones for the first step and evaluations."""
MOST_OUTPUT = 2000
MOST_INCIDENTS = 200
KEPT = "notified.json"


@dataclass(frozen=True)
class RunIncident:
    """Something that a user may have to know of."""

    event: str
    """`finished`, `stopped`, `failed`, `killed` or `stalled`."""
    key: str
    """Names the incident: the same one has the same key, also after a restart."""
    message: str


class IncidentWatch:
    """Finds the incidents of a run, each once."""

    def __init__(self, began: float, kept: Path | None = None) -> None:
        self._began, self._kept = began, kept
        self._keys = known_keys(kept)
        self._progress: tuple[int, int] | None = None
        self._since = 0.0

    def look(self, status: RunStatus, now_s: float) -> list[RunIncident]:
        """The incidents that are new. `now_s` is of a monotonic clock."""
        fresh = [one for one in self._incidents(status, now_s) if one.key not in self._keys]
        if fresh:
            self._keys = [*self._keys, *(incident.key for incident in fresh)][-MOST_INCIDENTS:]
            if self._kept:
                with suppress(OSError):
                    self._kept.parent.mkdir(parents=True, exist_ok=True)
                    write_json(self._kept, self._keys)
        return fresh

    def _incidents(self, status: RunStatus, now_s: float) -> Iterator[RunIncident]:
        key = f"{status.attempt}"
        for stall in status.stalls:
            if time_of(stall) >= self._began:
                yield RunIncident("stalled", f"{key} stall {time_of(stall)}", stall["words"])
        place = status.attempt, status.progress
        if place != self._progress:
            self._progress, self._since = place, now_s
        quiet_s = now_s - self._since
        limit_s = LONG_S if status.is_long else QUIET_S
        if status.state == RUNNING and status.attempt and quiet_s >= limit_s:
            message = f"no progress for {clock(quiet_s)} after step {status.step}"
            yield RunIncident("stalled", f"{key} quiet {status.progress}", message)
        if status.state == KILLED:
            message = f"it stopped without saying so after step {status.step}"
            yield RunIncident("killed", f"{key} killed {status.progress}", message)
        if status.end and status.state in (FINISHED, STOPPED, FAILED):
            reason = status.end.get("reason") or ""
            message = f"{status.state} at step {status.step}" + (f": {reason}" if reason else "")
            yield RunIncident(status.state, f"{key} end", message)


def known_keys(kept: Path | None) -> list[str]:
    """The incidents that an earlier tracker told of."""
    if kept is None:
        return []
    try:
        keys = json.loads(read_plain(kept, 1 << 20))
    except (OSError, ValueError, RecursionError):
        return []
    return [str(key) for key in keys] if isinstance(keys, list) else []


def facts_of(run: Path, status: RunStatus, incident: RunIncident) -> dict[str, str]:
    """The environment variables that tell a command of an incident."""
    facts = {
        "STOKER_RUN": str(run),
        "STOKER_EVENT": incident.event,
        "STOKER_STEP": str(status.step),
        "STOKER_BEST": "" if status.best is None else f"{status.best:.6g}",
        "STOKER_DOLLARS": "" if status.dollars is None else f"{status.dollars:.2f}",
        "STOKER_MESSAGE": printable(one_line(incident.message)),
    }
    return {name: value.replace("\0", "") for name, value in facts.items()}


class CommandRunner:
    """Runs a command for each incident, one after another, in a thread."""

    def __init__(
        self, words: Sequence[str], tell: Callable[[str], None], most_s: float = COMMAND_S
    ) -> None:
        self._words, self._tell, self._most_s = list(words), tell, most_s
        self._queue: queue.Queue[dict[str, str] | None] = queue.Queue(MOST_INCIDENTS)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, facts: Mapping[str, str]) -> None:
        with suppress(queue.Full):
            self._queue.put_nowait(dict(facts))

    def finish(self, within_s: float) -> None:
        """Wait for the commands that were asked for, so many seconds at most."""
        with suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(within_s)

    def _work(self) -> None:
        while (facts := self._queue.get()) is not None:
            for line in run_command(self._words, facts, self._most_s):
                self._tell(line)


def run_command(words: Sequence[str], facts: Mapping[str, str], most_s: float) -> list[str]:
    """Run a command with these environment variables; the lines to show. Never raises for what it
    does."""
    name = shown(words[0])
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **facts},
            )
        except (OSError, ValueError) as error:
            return [f"note: --notify {name} cannot be started: {one_line(str(error))}"]
        try:
            code = process.wait(most_s)
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return [f"note: --notify {name} was ended after {most_s:g} s"]
        output.seek(0)
        text = output.read(MOST_OUTPUT).decode(errors="replace")
    lines = [f"notify: {printable(line)}" for line in text.splitlines() if line.strip()]
    if code:
        lines.append(f"note: --notify {name} failed with code {code} ({facts['STOKER_EVENT']})")
    return lines


class Notifier:
    """Tells of the incidents of a run by a command."""

    def __init__(
        self, run: Path, watch: IncidentWatch, runner: CommandRunner, tell: Callable[[str], None]
    ) -> None:
        self._run, self._watch, self._runner, self._tell = run, watch, runner, tell

    def look(self, status: RunStatus, now_s: float | None = None) -> None:
        """Start the command for each new incident. It does not wait for it."""
        now_s = time.monotonic() if now_s is None else now_s
        for incident in self._watch.look(status, now_s):
            self._tell(f"notifies ({incident.event}): {printable(one_line(incident.message))}")
            self._runner.put(facts_of(self._run, status, incident))

    def finish(self) -> None:
        self._runner.finish(COMMAND_S)
