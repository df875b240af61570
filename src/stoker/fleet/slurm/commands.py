"""The commands of SLURM: sbatch, scontrol, squeue.

Invariants: no shell stands between, and no wait is endless. A job that SLURM has forgotten counts
as ended.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.commit import open_at_end, write_bytes
from stoker.errors import StokerError
from stoker.fleet.slurm.batch import BatchJob, batch_text
from stoker.host.signals import delayed_signals
from stoker.text import one_line

ANSWER_S = 60
SUBMITTED = "submitted.jsonl"
"""The file of a job's folder that lists what was submitted."""
LATEST = 5
"""Submissions from a folder that may still be live: earlier ones have ended."""
# Lines of `scontrol show job`: names and comments of the user's stand in other lines.
_STATE = re.compile(r"^\s*JobState=(\w+)", re.MULTILINE)
_PREEMPTED = re.compile(r"^\s*PreemptEligibleTime=\S+ PreemptTime=(?!None|N/A)\S", re.MULTILINE)


def call(words: Sequence[str]) -> str:
    """What a command of SLURM printed. Raises StokerError where it fails or does not exist."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S
        )
    except FileNotFoundError as error:
        raise StokerError(
            f"there is no {words[0]} here: run this on a machine where SLURM is installed"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise StokerError(f"{words[0]} did not answer within {ANSWER_S} s: try again") from error
    if done.returncode:
        reason = one_line(done.stderr.replace("\n", "; ")) or f"it ended with {done.returncode}"
        raise StokerError(reason if reason.startswith(words[0]) else f"{words[0]}: {reason}")
    return done.stdout


def submit(job: BatchJob, what: str = "") -> str:
    """Write the batch file and submit it; returns the job's id. `what` says what was submitted, for
    `live`. Raises BadRequest or StokerError."""
    text = batch_text(job, Path.cwd())
    job.folder.mkdir(parents=True, exist_ok=True)
    write_bytes(job.file, text.encode())
    with delayed_signals():  # what is submitted is also recorded
        answer = call(["sbatch", "--parsable", str(job.file)]).strip()
        name = answer.partition(";")[0]
        if not name.isdecimal():
            raise StokerError(f"sbatch answered '{one_line(answer)}', which is no job's id")
        append_line(job.folder / SUBMITTED, {"job": name, "what": what})
    return name


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    with open_at_end(path) as file:
        file.write(json.dumps(record).encode() + b"\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; what is none is passed over."""
    records = []
    with suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                records += [record] if isinstance(record, dict) else []
    return records


def live(folder: Path) -> dict[str, str]:
    """What was submitted from a folder and is still queued or running: by the job's id."""
    latest = read_lines(folder / SUBMITTED)[-LATEST:]
    submitted = {str(each.get("job")): str(each.get("what")) for each in latest}
    return {job: what for job, what in submitted.items() if is_live(job)}


def is_live(job: str) -> bool:
    """Whether a job, or a task of an array, waits or runs. Raises StokerError where SLURM does not
    answer."""
    try:
        return bool(call(["squeue", "-h", "-j", job, "-o", "%T"]).strip())
    except StokerError as error:
        if "Invalid job id" in str(error):
            return False
        raise


def own_id(variables: Mapping[str, str]) -> str:
    """The id of the job, or of the array's task, that this process runs in; empty outside."""
    if "SLURM_ARRAY_JOB_ID" in variables and "SLURM_ARRAY_TASK_ID" in variables:
        return f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"
    return variables.get("SLURM_JOB_ID", "")


@dataclass(frozen=True)
class JobState:
    """What SLURM says of a job."""

    state: str
    preempted: bool

    @property
    def is_running(self) -> bool:
        return self.state == "RUNNING"


def state_of(job: str) -> JobState:
    """Raises StokerError where SLURM does not answer or does not know the job."""
    text = call(["scontrol", "show", "job", job])
    state = _STATE.search(text)
    return JobState(state[1] if state else "UNKNOWN", _PREEMPTED.search(text) is not None)


def requeue(job: str) -> None:
    """Queue the running job again, under the same id. Raises StokerError where SLURM refuses,
    unless it is ending or queueing the job already."""
    try:
        call(["scontrol", "requeue", job])
    except StokerError:
        if state_of(job).is_running:
            raise
