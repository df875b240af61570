"""A rank that is killed or stopped: how soon it is named, and how the others end.

Invariant: a stopped rank is killed at the end, whatever happens.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from subprocess import Popen
from typing import Any

from stoker.doctor.selftest.commands import Train, send
from stoker.doctor.selftest.rows import Measured, NotRun, Setup
from stoker.errors import INTERRUPTED

RANKS, VICTIM = 2, 1
FLAGS = f"--ranks {RANKS} --epochs 100000 --eval-every 100000"
KEYS = "stall_after = 2.0\n"
SLOW = {"fault": "stall", "at": "forward", "seconds": 0.05, "again": True}
"""So that waiting costs little: the events of thousands of steps would be read each time."""
STEPS_BEFORE = 5
LIMIT_S = 30.0
KILLED, STOPPED = "lost rank 1", "rank 1 did not report"
"""How the launcher's log and the alarm name the rank."""


def process_of(train: Train, attempt: int, rank: int) -> int | None:
    """The number of a rank's process, once the rank has made some steps."""
    run = train.run
    if attempt not in run.attempts() or rank not in run.ranks(attempt):
        return None
    events = list(run.attempt_events(attempt, rank))
    steps = sum(event["kind"] == "step" for event in events)
    starts = [event for event in events if event["kind"] == "attempt"]
    return int(starts[0]["environment"]["process"]) if steps >= STEPS_BEFORE else None


def everything_printed(train: Train) -> str:
    """What the launcher and its ranks have written."""
    log = train.run.path / "launcher.log"
    return train.printed() + (log.read_text(errors="replace") if log.exists() else "")


def end_of_first(train: Train) -> dict[str, Any] | None:
    """The `end` event of rank 0 in the first attempt."""
    events = train.run.attempt_events(1, 0)
    return next((event for event in events if event["kind"] == "end"), None)


def lose(setup: Setup, number: signal.Signals, phrase: str) -> tuple[float, dict[str, Any], int]:
    """Send a signal to rank 1 in mid-run. Returns the seconds until it is named, the `end` event of
    rank 0, and the exit code of the command, which is asked to stop: after a kill when it has gone
    on by itself, after a stop when rank 0 has given up; rank 1 then continues."""
    if setup.gpus == 1:
        raise NotRun(f"needs {RANKS} GPUs, and there is 1")
    train = Train(setup, f"lost-{number.name}", FLAGS, KEYS)
    victim = 0
    try:
        with train.started(SLOW) as process:
            happens = partial(wait, train, process)
            victim = happens(lambda: process_of(train, 1, VICTIM), "the first steps")
            send(victim, number, train.run)
            began = time.monotonic()
            happens(lambda: phrase in everything_printed(train), f"'{phrase}'")
            named_s = time.monotonic() - began
            end = happens(lambda: end_of_first(train), "the end of rank 0")
            if number == signal.SIGKILL:
                happens(lambda: process_of(train, 2, VICTIM), "the next attempt")
            process.send_signal(signal.SIGTERM)
            send(victim, signal.SIGCONT, train.run)
            train.until(lambda: process.poll() is not None, "the end of the command")
            return named_s, end, int(process.returncode)
    finally:
        send(victim, signal.SIGKILL, train.run)


def wait(train: Train, process: Popen[bytes], happened: Callable[[], Any], event: str) -> Any:
    """As `Train.until`, but not for longer than the command runs."""
    ended: list[int] = []

    def condition() -> Any:
        if (value := happened()) or ended:
            return value or ended
        if process.poll() is not None:
            ended.append(process.returncode)  # look once more: it may have happened just before
        return None

    value = train.until(condition, event)
    if value is ended:
        train.require(ended[0], [])
    return value


def measure_killed(setup: Setup) -> Measured:
    return measured(*lose(setup, signal.SIGKILL, KILLED), "SIGKILL; the run went on by itself")


def measure_stopped(setup: Setup) -> Measured:
    return measured(*lose(setup, signal.SIGSTOP, STOPPED), "SIGSTOP")


def measured(named_s: float, end: dict[str, Any], code: int, cause: str) -> Measured:
    value = (
        f"rank 1 named {named_s:.1f} s after {cause}; rank 0 wrote its end ('{end['outcome']}'); "
        f"exit code {code} after SIGTERM"
    )
    figures = {"named_s": named_s, "end": end["outcome"], "reason": end["reason"], "code": code}
    holds = named_s <= LIMIT_S and code == INTERRUPTED
    return Measured(value, f"within {LIMIT_S:g} s, code {INTERRUPTED}", holds, figures)
