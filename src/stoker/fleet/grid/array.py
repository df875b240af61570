"""Workers of a grid as the tasks of a SLURM array.

    GRID/slurm/slurm.sh             the batch file: each task runs 'stoker work GRID --plan DIGEST'
    GRID/slurm/slurm-JOB_TASK.txt   what a task printed
    GRID/slurm/ends-JOB_TASK.jsonl  how each turn of a task ended

Invariants: a task that stops at its time limit, or is preempted, is queued again alone, under its
own id. While an array works on a plan, no second one is submitted for it. The command that waits
for an array may end: the array goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stoker.errors import FAILED, FINISHED, INTERRUPTED
from stoker.fleet.grid.backend import Stop
from stoker.fleet.grid.directory import Grid
from stoker.fleet.slurm.batch import BatchJob
from stoker.fleet.slurm.commands import is_live, live, submit

LOOK_S = 2.0
"""Seconds between two looks at the queue and the cells, at least: looking takes a fifth of the time
at most."""


@dataclass(frozen=True)
class SlurmArray:
    """An array of some tasks with these options of sbatch."""

    name: str
    tasks: int
    options: Mapping[str, str] = field(default_factory=dict)
    setup: Sequence[str] = ()
    wait: bool = False
    """Whether `run` waits for the array's end."""
    progress: Sequence[Path] = ()
    """What tells how far a task got, beside the grid."""
    say: Callable[[str], None] = lambda line: None

    def job(self, grid: Grid, plan: str) -> BatchJob:
        path = grid.path.absolute()
        return BatchJob(
            name=self.name,
            words=["work", str(path), "--plan", plan],
            folder=path / "slurm",
            options=self.options,
            setup=self.setup,
            progress=(path, *self.progress),
            tasks=self.tasks,
        )

    def submit(self, grid: Grid, plan: str) -> str:
        """Submit an array for a plan, unless one works on it; returns its id. Raises
        StokerError."""
        job = self.job(grid, plan)
        if number := next((n for n, what in live(job.folder).items() if what == plan), ""):
            self.say(f"job {number} works on this already: nothing was submitted")
            return number
        number = submit(job, plan)
        self.say(f"job {number} is submitted, an array of {self.tasks}: {job.file}")
        self.say(f"the queue: squeue -j {number}; 'scancel {number}' ends it, and it saves first")
        return number

    def run(self, grid: Grid, plan: str, stop: Stop) -> int:
        """As a Backend does; 75 as soon as the array is submitted where nothing waits for it."""
        number = self.submit(grid, plan)
        cells = grid.plan(plan)
        while self.wait and not stop():
            began = time.monotonic()
            # First the queue: a task that ends after this look has written its results before.
            is_left = is_live(number)
            if grid.status(cells).is_over:
                return FINISHED
            if not is_left:
                self.say(f"the array has ended, and cells are left: see {grid.path / 'slurm'}")
                return FAILED
            time.sleep(max(LOOK_S, 4 * (time.monotonic() - began)))
        return INTERRUPTED
