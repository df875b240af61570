"""The command `sky`: launch a task, and read back what became of it.

Invariants: SkyPilot is never imported; its command is found on PATH. No shell stands between. A job
is gone only where SkyPilot says so: no answer, or one that cannot be read, changes nothing.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from stoker.errors import StokerError
from stoker.fleet.sky.records import GONE, LAUNCHING, UNLISTED, CloudJob
from stoker.text import one_line

PROGRAM = "sky"
ANSWER_S = 300
"""Seconds for an answer about states: SkyPilot asks every provider."""
INTERRUPTED_S = 20
"""Seconds for SkyPilot to end after an interrupt."""
ENDED = ("SUCCEEDED", "CANCELLED", "FAILED")
"""What the final states of a managed job begin with."""
CONTROLLER = "sky-jobs-controller-"
"""The machine from which SkyPilot watches managed jobs."""


def find_sky() -> str:
    """The path of the command. Raises StokerError where it is not installed."""
    if path := shutil.which(PROGRAM):
        return path
    raise StokerError(
        "there is no command sky here: install SkyPilot with the clouds that you use, such as "
        "\"pip install 'skypilot[aws]'\" in an environment of its own, and run 'sky check'"
    )


def launch(words: Sequence[str]) -> int:
    """Run a launch, which prints for itself and may ask; returns its exit code. At a stop request
    it is interrupted as by Ctrl-C, and has time to put its own house in order."""
    process = subprocess.Popen(words)
    try:
        return process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(INTERRUPTED_S)
        process.kill()
        process.wait()
        raise


def answer(words: Sequence[str]) -> list[dict[str, Any]]:
    """The list of JSON objects that a command prints. Raises StokerError where it does not."""
    name = " ".join(words[1:3])
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S
        )
    except subprocess.TimeoutExpired as error:
        raise StokerError(f"'sky {name}' did not answer within {ANSWER_S} s: try again") from error
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        lines = (done.stderr.decode(errors="replace") or text).strip().splitlines()
        reason = one_line(lines[-1]) if lines else f"it ended with {done.returncode}"
        raise StokerError(f"'sky {name}' failed: {reason}")
    # Notices may stand before the list.
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith("[")), len(lines))
    try:
        rows = json.loads("\n".join(lines[start:]))
    except (ValueError, RecursionError) as error:
        raise StokerError(
            f"'sky {name}' printed no list of JSON: this needs SkyPilot 0.11 or newer"
        ) from error
    return [row for row in rows if isinstance(row, dict)]


@dataclass(frozen=True)
class SkyStates:
    """What SkyPilot says of everything that it rents."""

    clusters: Mapping[str, str]
    """State of each machine, by its name: UP, INIT, STOPPED (its disk is billed)."""
    jobs: Sequence[Mapping[str, Any]] | None = ()
    """Managed jobs; None where their controller has stopped, which it does after the last one."""

    @property
    def controllers(self) -> dict[str, str]:
        return {name: state for name, state in self.clusters.items() if CONTROLLER in name}

    def of(self, job: CloudJob) -> str:
        """The state of a job: GONE where its machine is, else SkyPilot's word."""
        if not job.managed:
            return self.clusters.get(job.name, GONE)
        if self.jobs is None:
            return GONE
        # Other jobs of this name are older: each launch is on record.
        mine = [row for row in self.jobs if row.get("job_name") == job.name]
        mine = [row for row in mine if number(row.get("submitted_at")) >= job.launched - 60]
        if not mine:  # a launch that failed before the job was submitted has rented nothing
            return GONE if job.state == LAUNCHING else UNLISTED
        row = max(mine, key=lambda row: number(row.get("submitted_at")))
        state = str(row.get("status") or "unknown")
        is_over = state.startswith(ENDED) and row.get("schedule_state") in (None, "DONE")
        return GONE if is_over else state


def number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def read_states(sky: str, *, managed: bool) -> SkyStates:
    """Ask SkyPilot, which asks the providers. Raises StokerError where there is no answer."""
    rows = answer([sky, "status", "--refresh", "--output", "json"])
    clusters = {str(row.get("name")): str(row.get("status") or "unknown") for row in rows}
    states = SkyStates(clusters)
    if not managed:
        return states
    if states.controllers and {*states.controllers.values()} == {"STOPPED"}:
        return replace(states, jobs=None)
    return replace(states, jobs=answer([sky, "jobs", "queue", "-v", "-a", "--output", "json"]))
