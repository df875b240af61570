"""Workers of a grid as processes on this machine.

Invariants: a worker that is killed is started again, on the same GPU, as long as cells get done;
one that fails is not. A stop signal is passed on to every worker, and they end when their commands
have saved.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.errors import FAILED, FINISHED, INTERRUPTED
from stoker.fleet.grid.backend import Stop
from stoker.fleet.grid.directory import DONE, Grid
from stoker.fleet.grid.gpus import VARIABLE, sharing_line, taken_gpus
from stoker.host.gpu import usable_gpus
from stoker.host.signals import block_stop_signals, end_with_parent

MOST_DEATHS = 5
"""Workers that may be killed for each worker without a cell getting done."""
POLL_S = 0.05
Workers = dict[int, subprocess.Popen[bytes]]


@dataclass(frozen=True)
class LocalWorkers:
    """So many workers on this machine, which share its GPUs: a Backend."""

    count: int
    say: Callable[[str], None] = lambda line: None

    def run(self, grid: Grid, plan: str, stop: Stop) -> int:
        cells, names = grid.plan(plan), usable_gpus()

        def done() -> int:
            return grid.status(cells).count(DONE)

        with taken_gpus(names, self.count) as seats:
            if line := sharing_line(names, seats):
                self.say(line)
            gpus = [name for name, _ in seats]
            return run_workers(grid.path, plan, self.count, stop, done, gpus)


def run_workers(
    grid: Path,
    plan: str,
    count: int,
    stop: Stop,
    done: Callable[[], int],
    gpus: Sequence[str] = (),
) -> int:
    """Run workers until no cell is left; returns 0, 75 where it was stopped, 1 where a worker
    failed. `done` returns how many cells are done; `gpus` has the GPU of each worker, if any."""
    gpus = gpus or [""] * count
    workers: Workers = {slot: start(grid, plan, gpus[slot]) for slot in range(count)}
    deaths, done_before, stopping, code = 0, -1, False, FINISHED
    while workers:
        if not stopping and (number := stop()):
            stopping = True
            for worker in workers.values():
                worker.send_signal(number)
        for slot, ended in [(slot, w.poll()) for slot, w in workers.items()]:
            if ended is None:
                continue
            del workers[slot]
            if ended >= 0:
                code = max(code, ended, key=(FINISHED, INTERRUPTED, FAILED).index)
                continue
            if (done_now := done()) > done_before:
                deaths, done_before = 0, done_now
            deaths += 1
            if stopping or deaths > MOST_DEATHS * count:
                code = INTERRUPTED if stopping else FAILED
                continue
            workers[slot] = start(grid, plan, gpus[slot])
        time.sleep(POLL_S)
    return code


def start(grid: Path, plan: str, gpu: str = "") -> subprocess.Popen[bytes]:
    """Start one worker, which sees one GPU, if that is given. It ends with this process, once its
    command has saved."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "stoker", "work", str(grid), "--plan", plan],
        env={**os.environ, **({VARIABLE: gpu} if gpu else {})},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=partial(prepare, os.getpid()),
    )


def prepare(parent: int) -> None:
    end_with_parent(parent)
    block_stop_signals()
