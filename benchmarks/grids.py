"""A grid of ten thousand tiny cells, four workers and two hundred kills.

    python benchmarks/grids.py [--cells 10000] [--kills 200] [--workers 4] [--seed 0] [--json]

A cell is three lines of shell; each tenth begins a chain, in which each cell needs the one before.
Workers and commands are killed at random, by the seed, evenly over the grid. Each cell must be done
and have been run to its end once. The same commands in a pool of threads, without a grid, show what
a worker adds to a cell: without kills, on a tenth of the cells.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from stoker.fleet.grid.cell import Cell, Plan
from stoker.fleet.grid.directory import Grid
from stoker.host.signals import end_with_parent

SCRIPT = """cd "$STOKER_CELL"
echo run >> work/runs
echo '{"value": 1}' > draft.json"""
ROWS = {
    "plan_s": "planning, s",
    "status_before_s": "status before, s",
    "run_s": "run, s",
    "status_after_s": "status after, s",
    "killed_workers": "workers killed",
    "killed_commands": "commands killed",
    "done": "cells done",
    "finished_twice": "cells run to their end twice",
    "leases": "leases",
    "lost_leases": "leases whose worker or command was killed",
    "commands": "commands that began",
    "pool_ms": "a cell in a bare pool, ms",
    "grid_ms": "a cell in a grid, ms",
    "pool_cpu_ms": "a cell in a bare pool, ms of CPU",
    "grid_cpu_ms": "a cell in a grid, ms of CPU",
}
CHAIN, SHARE, POLL_S = 10, 10, 0.01
WORKER, COMMAND = "worker", "command"
LAUNCH = """
import sys
from pathlib import Path
from stoker.fleet.grid.directory import Grid
from stoker.fleet.grid.local import run_workers
folder, digest, workers = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
grid = Grid(folder)
done = lambda: grid.status(plan).count("done")
plan = grid.plan(digest)
sys.exit(run_workers(folder, digest, workers, lambda: None, done))
"""


def plan_of(cells: int) -> Plan:
    plan, last = Plan(), ""
    for number in range(cells):
        parents = (last,) if number % CHAIN else ()
        last = plan.add(Cell(f"cell {number}", ("sh", "-c", SCRIPT), {"number": number}, parents))
    return plan


def cpu_s() -> float:
    """User and system time of children that have ended, and of theirs."""
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and CPU seconds of child processes."""
    began, cpu = time.perf_counter(), cpu_s()
    work()
    return time.perf_counter() - began, cpu_s() - cpu


def children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def kill_one(launcher: int, what: str, chance: random.Random) -> bool:
    """Kill a worker or a command; returns False where none is there or it has just ended."""
    victims = children(launcher)
    if what == COMMAND:
        victims = [command for worker in victims for command in children(worker)]
    if victims:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(victims), signal.SIGKILL)
            return True
    return False


def run_grid(
    grid: Grid, digest: str, workers: int, kills: int, seed: int, cells: int
) -> Counter[str]:
    """Run a grid to its end; returns how often what was killed."""
    words = [sys.executable, "-c", LAUNCH, str(grid.path), digest, str(workers)]
    chance, killed = random.Random(seed), Counter[str]()
    ending = partial(end_with_parent, os.getpid())
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, preexec_fn=ending) as launcher:
        while launcher.poll() is None:
            begun = len(grid.files.names("cells"))
            if killed.total() < kills and begun >= cells * (killed.total() + 1) // (kills + 1):
                what = chance.choice((WORKER, COMMAND))
                while launcher.poll() is None:
                    if kill_one(launcher.pid, what, chance):
                        killed[what] += 1
                        break
            time.sleep(POLL_S)
    if launcher.returncode:
        raise SystemExit(f"the workers ended with {launcher.returncode}")
    return killed


def run_pool(folder: Path, cells: int, workers: int) -> None:
    """The same commands without a grid."""

    def run(number: int) -> None:
        cell = folder / str(number)
        (cell / "work").mkdir(parents=True)
        subprocess.run(
            ["sh", "-c", SCRIPT], check=True, env={**os.environ, "STOKER_CELL": str(cell)}
        )

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(run, range(cells)))


def added_by_a_worker(root: Path, cells: int, workers: int) -> dict[str, float]:
    """Milliseconds for each cell, in a pool and in a grid."""
    plan = plan_of(cells)
    grid = Grid(root / "small")
    digest = grid.freeze(plan)
    pool_s, pool_cpu = timed(lambda: run_pool(root / "pool", cells, workers))
    grid_s, grid_cpu = timed(lambda: run_grid(grid, digest, workers, 0, 0, cells))
    seconds = {"pool": pool_s, "pool_cpu": pool_cpu, "grid": grid_s, "grid_cpu": grid_cpu}
    return {f"{name}_ms": 1000 * value / cells for name, value in seconds.items()}


def endings(grid: Grid, plan: Plan) -> dict[str, int]:
    """How cells ended, by the workers' records and by the commands themselves."""
    ends = [Counter(end["outcome"] for end in grid.ends(cell)) for cell in plan.cells]
    runs = [grid.cell_path(cell) / "work" / "runs" for cell in plan.cells]
    return {
        "done": sum(grid.is_done(cell) for cell in plan.cells),
        "finished_twice": sum(end["finished"] > 1 for end in ends),
        "leases": sum(end.total() for end in ends),
        "lost_leases": sum(end["lost"] for end in ends),
        "commands": sum(len(file.read_bytes().splitlines()) for file in runs if file.exists()),
    }


def measure(root: Path, flags: argparse.Namespace) -> dict[str, float]:
    grid, plan, digest = Grid(root / "grid"), Plan(), ""

    def make() -> None:
        nonlocal plan, digest
        plan = plan_of(flags.cells)
        digest = grid.freeze(plan)

    figures = {"plan_s": timed(make)[0], "status_before_s": timed(lambda: grid.status(plan))[0]}
    began = time.perf_counter()
    killed = run_grid(grid, digest, flags.workers, flags.kills, flags.seed, flags.cells)
    figures["run_s"] = time.perf_counter() - began
    figures["status_after_s"] = timed(lambda: grid.status(plan))[0]
    figures |= {f"killed_{what}s": float(killed[what]) for what in (WORKER, COMMAND)}
    figures |= endings(grid, plan)
    return figures | added_by_a_worker(root, max(1, flags.cells // SHARE), flags.workers)


def row(name: str, value: float) -> str:
    digits = 1 if name.endswith(("_s", "_ms")) else 0
    return f"{ROWS[name]:42s} {value:8.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        figures = measure(Path(name), flags)
    if flags.json:
        print(json.dumps({name: round(value, 3) for name, value in figures.items()}))
    else:
        print(*(row(name, figures[name]) for name in ROWS), sep="\n")
    if figures["done"] != flags.cells or figures["finished_twice"]:
        raise SystemExit("a cell is missing, or was run to its end twice")


if __name__ == "__main__":
    main()
