"""What each part of the recipe brings on CIFAR-10: python benchmarks/cifar.py SET FOLDER

SET is CIFAR-10, packed with `--codec raw`. Each row is `cifar10-quick` with other flags, in a run
of a few epochs; a finished run in FOLDER is not made again. As many rows run at once as there are
cores, each on its own core. With `--only ROW` one row is run.
"""

from __future__ import annotations

import argparse
import os
import queue
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stoker.run.directory import Run

ROWS = {
    "width 32": "--model resnet9_w32",
    "width 24": "--model resnet9_w24",
    "twice the epochs": "--epochs 8 --warmup-epochs 2",
    "as it is": "",
    "TrivialAugment": "--auto-augment trivial",
    "erasing 0.25": "--random-erasing 0.25",
    "shift of 2": "--crop-pad 2",
    "batch 128": "--batch-size 128",
    "twice the learning rate": "--lr-base 0.8",
    "label smoothing 0.2": "--label-smoothing 0.2",
    "weight decay 1e-3": "--weight-decay 1e-3",
    "cutmix 0.5": "--cutmix-prob 0.5",
}
"""The longest first: the last ones to end are then short."""


def train_row(name: str, options: argparse.Namespace, cores: queue.Queue[int]) -> str:
    """Train one row on a core of its own; its line of the table. Raises CalledProcessError."""
    run = options.folder / name.replace(" ", "-")
    flags = f"--model {options.model} --epochs {options.epochs} --warmup-epochs 1 {ROWS[name]}"
    recipe = ["--recipe", "cifar10-quick", "--run", str(run), "--seed", str(options.seed)]
    core = cores.get()
    try:
        command = ["taskset", "-c", str(core), sys.executable, "-m", "stoker", "train"]
        with run.with_suffix(".log").open("w") as log:
            subprocess.run(
                [*command, str(options.data), *recipe, *flags.split()], check=True, stdout=log
            )
    finally:
        cores.put(core)
    evaluations = Run(run).merged("evaluation")
    share = 100 * evaluations[-1]["top1"] / evaluations[-1]["images"]
    line = f"| {name} | {share:.2f} % | `{ROWS[name]}` |"
    print(line, file=sys.stderr, flush=True)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="resnet9_w16")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(ROWS))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    cores: queue.Queue[int] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    with ThreadPoolExecutor(cores.qsize()) as pool:
        rows = [pool.submit(train_row, name, options, cores) for name in options.only or ROWS]
        lines = [row.result() for row in rows]
    print("| row | top-1 | flags |\n|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
