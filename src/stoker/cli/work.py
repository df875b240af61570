"""stoker work GRID: run cells of a grid, beside any other workers, until none is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.fleet.grid.directory import Grid
from stoker.fleet.grid.gpus import VARIABLE, taken_gpus
from stoker.fleet.grid.worker import Worker
from stoker.host.gpu import usable_gpus
from stoker.locks.files import SystemClock
from stoker.locks.lease import Holder, Leases
from stoker.survive.stopping import listening
from stoker.text import say


def parser() -> Parser:
    work = Parser(
        prog="stoker work",
        usage="stoker work GRID --plan DIGEST",
        description="Run the cells of a grid that are ready and that no other worker runs, until "
        "none is left. Start it on as many machines as share the folder.",
    )
    work.add_argument("grid", metavar="GRID", type=Path, help="the folder of a sweep or study")
    work.add_argument("--plan", metavar="DIGEST", required=True, help="which of its plans")
    work.add_argument("--cells", metavar="N", type=int, help="run at most N cells [all]")
    return work


def run(arguments: Sequence[str]) -> int:
    with listening() as stop:
        parsed = parser().parse(arguments)
        grid = Grid(parsed.grid)
        plan = grid.plan(parsed.plan)

        def stop_signal() -> signal.Signals | None:
            return signal.SIGTERM if stop else None

        leases = Leases(grid.files, SystemClock(), Holder.this_process())
        names = usable_gpus()
        # One that is given a single GPU has no choice: its command or SLURM made it.
        with taken_gpus(names if len(names) > 1 else (), 1) as seats:
            for name, _ in seats:
                os.environ[VARIABLE] = name
            return Worker(grid, plan, leases, stop_signal, say, parsed.cells).run()
