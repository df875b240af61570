"""Real `stoker` processes for tests: start, wait for an event, signal, collect."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from stoker.faults import VARIABLE
from stoker.run.directory import Run
from stoker.run.events import Event


def start(
    arguments: list[str], cwd: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """A stoker process in a group of its own, as a scheduler would start it."""
    return subprocess.Popen(
        [sys.executable, "-m", "stoker", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **(variables or {})},
    )


def finish(process: subprocess.Popen[str], timeout_s: float = 300) -> tuple[int, str]:
    """Exit code and everything that was printed."""
    printed, _ = process.communicate(timeout=timeout_s)
    return process.returncode, printed


def wait_until(
    happened: Callable[[], bool], process: subprocess.Popen[str], timeout_s: float = 240
) -> None:
    give_up = time.monotonic() + timeout_s
    while not happened():
        assert process.poll() is None, f"ended too early:\n{process.communicate()[0]}"
        assert time.monotonic() < give_up, "waited too long"
        time.sleep(0.05)


def steps_done(run: Run, attempt: int) -> int:
    """Steps that an attempt has written down so far."""
    return sum(event["kind"] == "step" for event in run.attempt_events(attempt))


def slow_steps(until: int | None = None) -> dict[str, str]:
    """Steps so slow that a test can act before the run is over."""
    slow = {"fault": "stall", "at": "forward", "seconds": 0.3, "again": True, "until": until}
    return {VARIABLE: json.dumps([slow])}


def ended(run: Run) -> Event:
    end = run.end()
    assert end is not None
    return end
