"""What each part of the recipe brings on CIFAR-10: python benchmarks/cifar.py SET FOLDER

SET is CIFAR-10, packed with `--codec raw`. Each row is `cifar10-quick` with other flags, trained
for `--epochs`; a finished run in FOLDER is not made again. Time is CPU time over the number of
cores: what the run would take on quiet cores. With `--only ROW` one row is run.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path

from stoker.run.directory import Run

AIR = "--crop-pad 2 --label-smoothing 0.2"
ROWS = {
    "as it is": "",
    "TrivialAugment": "--auto-augment trivial",
    "erasing 0.25": "--random-erasing 0.25",
    "cutmix 0.5": "--cutmix-prob 0.5",
    "mixup 0.2": "--mixup-alpha 0.2",
    "width 24": "--model resnet9_w24",
    "width 32": "--model resnet9_w32",
    "width 32, TrivialAugment": "--model resnet9_w32 --auto-augment trivial",
    "width 32, erasing 0.25": "--model resnet9_w32 --random-erasing 0.25",
    "batch 128": "--batch-size 128",
    "batch 512": "--batch-size 512",
    "shift of 2": AIR,
    "learning rate twice": "--lr-base 0.8",
    "weight decay 1e-3": "--weight-decay 1e-3",
}


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(ROWS))
    parser.add_argument("--also", default="", help="flags for every row")
    options = parser.parse_args()
    print("| row | top-1 | CPU time, min of 2 cores | flags |\n|---|---|---|---|", flush=True)
    for name in options.only or ROWS:
        run = options.folder / f"{name.replace(' ', '-').replace(',', '')}-{options.epochs}"
        flags = f"--epochs {options.epochs} --seed {options.seed} {options.also} {ROWS[name]}"
        before = cpu_s()
        command = [sys.executable, "-m", "stoker", "train", str(options.data)]
        recipe = ["--recipe", "cifar10-quick", "--run", str(run), *flags.split()]
        subprocess.run([*command, *recipe], check=True, stdout=sys.stderr)
        last = Run(run).merged("evaluation")[-1]
        minutes = (cpu_s() - before) / 2 / 60
        share = 100 * last["top1"] / last["images"]
        print(f"| {name} | {share:.2f} % | {minutes:.1f} | `{ROWS[name]}` |", flush=True)


if __name__ == "__main__":
    main()
