"""What each part of the recipe brings on CIFAR-10: python benchmarks/cifar.py SET FOLDER

SET is CIFAR-10, packed with `--codec raw`. Each row is a short and narrow version of the preset
`cifar10-quick` with other flags; a finished run in FOLDER is not made again. As many rows run at
once as there are cores, each on its own core. With `--only ROW` one row is run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from runs import train_all

SHORT = "--model resnet9_w16 --epochs 4 --warmup-epochs 1 --crop-pad 4 --eval-every 1"
ROWS = {
    "width 32": "--model resnet9_w32",
    "width 24": "--model resnet9_w24",
    "twice the epochs": "--epochs 8 --warmup-epochs 2",
    "as it is": "",
    "TrivialAugment": "--auto-augment trivial",
    "erasing 0.25": "--random-erasing 0.25",
    "shift of 2 px instead of 4": "--crop-pad 2",
    "batch 128": "--batch-size 128",
    "twice the learning rate": "--lr-base 0.8",
    "label smoothing 0.2": "--label-smoothing 0.2",
}
"""The longest first: the last ones to end are then short."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(ROWS))
    options = parser.parse_args()
    names = options.only or list(ROWS)
    runs = {name: options.folder / name.replace(" ", "-") for name in names}
    common = f"{options.data} --recipe cifar10-quick --seed {options.seed}"
    top1 = train_all({runs[name]: f"{common} {SHORT} {ROWS[name]}" for name in names})
    print("| row | top-1 | flags |\n|---|---|---|")
    for name in names:
        print(f"| {name} | {top1[runs[name]]:.2f} % | `{ROWS[name]}` |")


if __name__ == "__main__":
    main()
