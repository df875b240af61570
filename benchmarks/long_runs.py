"""How long it takes to look at long records, and at many of them.

    python benchmarks/long_runs.py FOLDER [--steps 100000] [--ranks 8] [--runs 1000] [--repeats 5]

FOLDER receives a record of the size of eight hours and a folder of short runs, where they are not
there yet (0.7 GB, five minutes). Each command runs in a process of its own, the commands in turn,
so that a slow minute of the machine meets all of them. Times are from the start of the process.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from made_runs import RunMaker

STOKER = (sys.executable, "-m", "stoker")


def make(folder: Path, steps: int, ranks: int, runs: int) -> tuple[Path, Path]:
    """The long record and the folder of short ones."""
    long, many = folder / f"steps-{steps}-ranks-{ranks}", folder / f"runs-{runs}"
    if not long.exists():
        half = steps // 2
        maker = RunMaker(long, steps=steps, ranks=ranks, gpus=True)
        maker.attempt(0, half + min(500, half), None).attempt(half, steps)
    for number in range(runs):
        path = many / f"run-{number:04d}"
        if not path.exists():
            outcome = "finished" if number % 3 else "interrupted"
            RunMaker(path, steps=100, seed=number).attempt(0, 40, None).attempt(30, 100, outcome)
    return long, many


def measured(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ended = subprocess.run(command, capture_output=True, check=False)
    wall_s = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)}: {ended.stderr.decode()[-2000:]}")
    used = (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)
    return wall_s, used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parsed = parser.parse_args()
    long, many = make(parsed.folder, parsed.steps, parsed.ranks, parsed.runs)
    page = parsed.folder / "report.html"
    commands = {
        "stoker --version": [*STOKER, "--version"],
        "stoker watch RUN --once": [*STOKER, "watch", str(long), "--once"],
        "stoker report RUN": [*STOKER, "report", str(long), "--out", str(page)],
        "stoker explain RUN": [*STOKER, "explain", str(long)],
        f"stoker runs ({parsed.runs:,} runs)": [*STOKER, "runs", str(many)],
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(parsed.repeats):
        for name, command in commands.items():
            times[name].append(measured(command))
    files = [path for path in long.rglob("*.jsonl") if path.is_file()]
    sizes = {
        kind: sum(
            f.stat().st_size for f in files if (".summary" in f.name) == (kind == "summaries")
        )
        for kind in ("events", "summaries")
    }
    print(f"{parsed.steps:,} steps, {parsed.ranks} ranks: ", end="")
    print(", ".join(f"{size / 1e6:,.0f} MB of {kind}" for kind, size in sizes.items()))
    print(f"{'command':<28} {'wall: median (least, most)':>28} {'CPU: median':>12}")
    for name, pairs in times.items():
        walls = sorted(wall for wall, _ in pairs)
        cpu = statistics.median(used for _, used in pairs)
        spread = f"{statistics.median(walls):.2f} s ({walls[0]:.2f}, {walls[-1]:.2f})"
        print(f"{name:<28} {spread:>28} {cpu:>10.2f} s")
    print(f"report: {page.stat().st_size / 1e6:.2f} MB; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
