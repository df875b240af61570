"""Run the cells of a plan until none is left."""

from __future__ import annotations

import json
import signal
from contextlib import suppress

from stoker.errors import FAILED as EXIT_FAILED
from stoker.errors import FINISHED, BadRequest
from stoker.fleet.grid.backend import Backend
from stoker.fleet.grid.cell import Plan
from stoker.fleet.grid.directory import DAMAGED, DONE, FAILED, Grid
from stoker.host.limits import usable_cores
from stoker.study.results import study_status
from stoker.survive.stopping import StopRequest

THREADS = "threads.json"
"""The file of a grid with the number of threads that its cells compute with."""


def threads_of(grid: Grid, wanted: int, workers: int, cores: int = 0) -> int:
    """How many threads a cell computes with: what the flag says, else what the grid began with,
    else the cores, by default this machine's, divided by the workers. Raises BadRequest."""
    if workers < 1:
        raise BadRequest(f"--workers must be at least 1, not {workers}")
    if wanted < 0:
        raise BadRequest(f"--compute-threads must be at least 1, not {wanted}")
    if wanted:
        return wanted
    with suppress(ValueError, TypeError):
        threads = json.loads(grid.files.read(THREADS) or b"")
        if type(threads) is int and threads > 0:
            return threads
    return max(1, (cores or usable_cores()) // workers)


def keep_threads(grid: Grid, threads: int) -> None:
    """Record the threads of the first plan: a later command with other workers plans the same."""
    grid.files.create(THREADS, str(threads).encode())


def run_cells(grid: Grid, plan: Plan, digest: str, backend: Backend, stop: StopRequest) -> int:
    """Run what is missing or has failed; returns 0, 75 where it was stopped, 1 where a cell failed
    or has a damaged result."""
    before = grid.status(plan)
    grid.forgive([cell for cell, state in before.states.items() if state == FAILED])
    code = FINISHED
    if before.count(DONE) < len(plan.cells):
        code = backend.run(grid, digest, lambda: signal.SIGTERM if stop else None)
    after = study_status(grid, plan)
    if code == FINISHED and after.count(FAILED) + after.count(DAMAGED):
        return EXIT_FAILED
    return code
