"""A training run that is killed with SIGKILL at seeded times, against the simulated one.

Invariants: before the kills one attempt of the same command is measured: when its first step began,
when its saves began, how long they blocked training and when they were complete. The prediction is
`losses.replay` of these figures and of the seeded times. A kill counts from the time that is in the
record of an attempt. A time within EDGE_S of the end of a save is drawn again: there it is a matter
of chance whether the save counts. What an attempt keeps are the steps up to the one at which the
next attempt begins, and their time is in its record; redone is the rest of its time until the kill.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.scale.losses import Timing, replay

from stoker.run.directory import Run

INTERVAL_S = 5.0
EDGE_S = 0.3
PATIENCE_S = 120.0
FLAGS = (
    "--model resnet9_w2 --image-size 8 --batch-size 16 --crop pad --crop-pad 1 --threads 1 "
    "--epochs 100000 --eval-every 100000 --no-report --no-rehearse "
    f"--checkpoint-interval {INTERVAL_S}"
)


class Attempt:
    """A command that trains, and what it has written."""

    def __init__(self, packed: Path, run: Path) -> None:
        self.run = Run(run)
        self.number = max(self.run.attempts(), default=0) + 1 if run.exists() else 1
        command = [sys.executable, "-m", "stoker", "train", str(packed), "--run", str(run)]
        with run.with_suffix(".printed").open("ab") as printed:
            self.process = subprocess.Popen(
                [*command, *FLAGS.split()],
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
            )
        self.began = self._until(lambda: next(iter(self.events("attempt")), None))
        """The record of its begin."""
        self.life_s = 0.0

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [e for e in self.run.attempt_events(self.number) if e["kind"] == kind]

    def _until(self, look: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
        """What `look` returns as soon as that is not None."""
        give_up = time.monotonic() + PATIENCE_S
        while (seen := look()) is None:
            if self.process.poll() is not None or time.monotonic() > give_up:
                with suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                raise SystemExit(f"training did not begin: see {self.run.path}.printed")
            time.sleep(0.02)
        return seen

    def kill_at(self, life_s: float) -> None:
        """Kill it so many seconds after its begin."""
        time.sleep(max(self.began["time"] + life_s - time.time(), 0.0))
        self.kill()

    def kill(self) -> None:
        self.life_s = time.time() - self.began["time"]
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def kept_s(self, step: int) -> float:
        """Seconds of its steps before this one."""
        kept = [e["parts"] for e in self.events("step") if e["step"] < step]
        return float(sum(sum(parts.values()) for parts in kept))


def timing_of(attempt: Attempt) -> Timing:
    """How an attempt went, measured."""
    steps, saves = attempt.events("step"), attempt.events("checkpoint")
    if len(saves) < 2:
        raise SystemExit("the measured attempt has fewer than two saves: the machine is too busy")
    began = attempt.began["time"]
    work_s = np.cumsum([sum(step["parts"].values()) for step in steps])
    start_s = steps[-1]["time"] - float(work_s[-1]) - began
    at_s = [float(work_s[min(save["step"], len(work_s)) - 1]) for save in saves]
    blocked_s = float(np.median([save["blocked_s"] for save in saves]))
    commit_s = float(np.median([save["seconds"] for save in saves]))
    later_s = float(np.median(np.diff(at_s))) - blocked_s
    return Timing(max(start_s, 0.0), at_s[0], later_s, blocked_s, commit_s)


def lifetimes(count: int, timing: Timing, seed: int) -> list[float]:
    """Seconds from the begin of an attempt to its kill."""
    draw, chosen = np.random.default_rng(seed), list[float]()
    while len(chosen) < count:
        life_s = float(draw.uniform(0.5, 3.0)) * INTERVAL_S
        done_s = timing.start_s + timing.first_s + timing.blocked_s + timing.commit_s
        since_s = (life_s - done_s) % (timing.later_s + timing.blocked_s)
        if EDGE_S < since_s < timing.later_s + timing.blocked_s - EDGE_S:
            chosen.append(life_s)
    return chosen


def check(packed: Path, run: Path, count: int, seed: int) -> tuple[float, float]:
    """Redone work as a share of the work that counts: predicted, and measured."""
    trial = Attempt(packed, run.with_name("measured"))
    trial.kill_at(3.5 * INTERVAL_S)
    timing = timing_of(trial)
    lives = lifetimes(count, timing, seed)
    spent = replay(lives, timing)
    predicted = spent.redone_s / spent.kept_s
    print(f"measured attempt: {timing}")
    print(f"predicted: {predicted:.1%} of the work redone by {count} kills", flush=True)
    attempts = []
    for life_s in [*lives, 0.0]:  # the last one shows what the one before has kept
        attempts.append(Attempt(packed, run))
        attempts[-1].kill_at(life_s)
    pairs = [(one, one.kept_s(int(later.began["step"]))) for one, later in pairwise(attempts)]
    kept_s = sum(kept for _, kept in pairs)
    redone_s = sum(one.life_s - timing.start_s - kept for one, kept in pairs)
    return predicted, redone_s / kept_s
