"""Where the workers of a grid run: processes on this machine, or tasks of a SLURM array.

Every backend keeps what tests/grid_conformance.py asks for: each cell's result is committed once,
whatever is killed; running a plan again runs what is missing; a stopped command saves first.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Protocol

from stoker.fleet.grid.directory import Grid

Stop = Callable[[], signal.Signals | None]
"""Returns the signal that asked to stop; None while the work may go on."""


class Backend(Protocol):
    """A place for workers."""

    def run(self, grid: Grid, plan: str, stop: Stop) -> int:
        """Run the cells of a frozen plan. Returns 0 where no cell is left to run, 75 where it was
        stopped or goes on elsewhere, 1 where workers failed and cells are left."""
        ...
