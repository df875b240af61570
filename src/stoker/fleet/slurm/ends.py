"""What happens when a job ends: done, queued again, or left.

Invariants: a job that was stopped with everything saved (75) is queued again, and so is one that
failed, if it got further than before its last end of that kind. The same failure twice stops, and
so do two stops without a step between them. A preempted job would be queued again by SLURM itself,
so its progress does not count. All of it is bounded, and each end is on record.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import BAD_REQUEST, FINISHED, INTERRUPTED
from stoker.fleet.slurm.commands import append_line, read_lines, state_of
from stoker.text import plural

STOPPED = (INTERRUPTED, 128 + signal.SIGUSR1, 128 + signal.SIGTERM)
"""Codes of a command that was told to stop: with everything saved, or by a signal that came before
it listened, when it had nothing to save."""
MOST_REQUEUES = 500
"""Times that a job is queued again."""
MOST_BLIND = 5
"""The same, where nothing tells how far it got."""


@dataclass(frozen=True)
class Progress:
    """How far a job got."""

    marks: tuple[int, ...]
    """Numbers that grow, compared from the first on; none where nothing is known."""
    text: str
    """Such as "step 120"."""


@dataclass(frozen=True)
class Decision:
    """Whether a job is queued again, and why."""

    requeue: bool
    reason: str


def decide(
    code: int, progress: Progress, earlier: Sequence[Mapping[str, Any]], *, preempted: bool = False
) -> Decision:
    """What to do with a job that ended with a code. `earlier` are the records of its earlier ends,
    oldest first."""
    where = f" at {progress.text}" * bool(progress.text)
    if code == FINISHED:
        return Decision(False, "finished")
    if code == BAD_REQUEST:
        return Decision(False, "refused: the message above says what to change")
    most = MOST_REQUEUES if progress.marks else MOST_BLIND
    if len(earlier) >= most:
        return Decision(False, f"stopped: queued again {plural(most, 'time')} already")
    stopped = code in STOPPED
    if stopped and preempted:
        return Decision(True, f"preempted{where}, saved: queued again")
    same = [end for end in earlier if (end.get("code") in STOPPED) == stopped]
    if same and progress.marks and marks_of(same[-1]) >= progress.marks:
        if stopped:
            return Decision(
                False,
                f"stopped: no step since the last stop{where}: submit it with a longer --time",
            )
        return Decision(False, f"failed twice{where}: the output above says why")
    if same and not progress.marks and not stopped:
        return Decision(False, "failed twice: the output above says why")
    if stopped:
        return Decision(True, f"stopped{where}, saved: queued again")
    return Decision(True, f"failed (exit code {code}){where}: queued again, once")


def marks_of(end: Mapping[str, Any]) -> tuple[int, ...]:
    """The progress that the record of an end holds; none where it is not readable."""
    marks = end.get("marks")
    if not isinstance(marks, list) or not all(type(mark) is int for mark in marks):
        return ()
    return tuple(marks)


def record_end(folder: Path, job: str, code: int, progress: Progress) -> Decision:
    """Decide what to do with a job that ended, and record it. An empty `job` is none of SLURM's.
    Raises StokerError where SLURM does not answer."""
    state = state_of(job) if job and code not in (FINISHED, BAD_REQUEST) else None
    file = folder / f"ends-{job or 'local'}.jsonl"
    decision = decide(code, progress, read_lines(file), preempted=bool(state and state.preempted))
    if decision.requeue and state is None:
        decision = Decision(False, f"ended with {code}, and not as a job of SLURM")
    elif decision.requeue and state and not state.is_running:
        # SLURM ends it: cancelled by its user, or queued again already.
        decision = Decision(False, f"ended by SLURM ({state.state})")
    record = {
        "time": round(time.time(), 1),
        "code": code,
        "marks": progress.marks,
        "progress": progress.text,
        "requeued": decision.requeue,
        "why": decision.reason,
    }
    append_line(file, record)
    return decision
