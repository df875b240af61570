"""Short training runs for tables of results: as many at once as there are cores, each on its own.

Two runs on a core each use two cores better than one run on both. A finished run is not made again.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stoker.run.directory import Run

STOKER = ("-m", "stoker")


def final_top1(run: Path) -> float:
    """The last top-1 in percent: not the best, which would favour runs that vary more."""
    event = Run(run).merged("evaluation")[-1]
    return 100 * float(event["top1"]) / float(event["images"])


def train_on_core(cores: queue.Queue[int], run: Path, words: str, program: Sequence[str]) -> float:
    """The top-1 of one run, on the next free core. Raises CalledProcessError."""
    core = cores.get()
    try:
        command = ["taskset", "-c", str(core), sys.executable, *program, "train"]
        with Path(f"{run}.log").open("w") as log:
            subprocess.run([*command, *words.split(), "--run", str(run)], check=True, stdout=log)
    finally:
        cores.put(core)
    top1 = final_top1(run)
    print(f"{run.name}: {top1:.2f} %", file=sys.stderr, flush=True)
    return top1


def train_all(
    words: Mapping[Path, str], programs: Mapping[Path, Sequence[str]] | None = None
) -> dict[Path, float]:
    """The top-1 of each run, whose words of `stoker train` are given, and what is run in place of
    `-m stoker`. Raises CalledProcessError where one fails, after the others."""
    others = programs or {}
    cores: queue.Queue[int] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    for run in words:
        run.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(cores.qsize()) as pool:
        results = {
            run: pool.submit(train_on_core, cores, run, words[run], others.get(run, STOKER))
            for run in words
        }
    return {run: result.result() for run, result in results.items()}
