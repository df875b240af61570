"""The cost of checkpoints at the default interval.

    python benchmarks/saving.py [--model resnet18] [--minutes 6]

Trains in a separate process, as a user would, on small generated images, with every key that
concerns saving at its default. Then adds up, from the run's events, the time that training waited
for saves and the time that a core worked on them at the same time. The sum is the most that saving
can have cost.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.run.directory import Run

CLASSES, IMAGES, SIDE = 10, 200, 64


def pictures(folder: Path) -> Path:
    draw = np.random.default_rng(0)
    for label in range(CLASSES):
        (folder / str(label)).mkdir(parents=True)
        for number in range(IMAGES):
            pixels = draw.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / str(label) / f"{number}.png")
    return folder


def train(data: Path, run: Path, model: str, minutes: float) -> None:
    flags = f"--model {model} --image-size {SIDE} --batch-size 32 --epochs 10000 --eval-every 10000"
    limit = f"--time-limit {60 * minutes:g}"
    command = ["train", str(data), "--run", str(run), *flags.split(), *limit.split()]
    done = subprocess.run([sys.executable, "-m", "stoker", *command], check=False)
    if done.returncode != 75:
        raise SystemExit(f"training ended with code {done.returncode}, not 75 (its time limit)")


def cost(run: Run) -> dict[str, object]:
    """Seconds and shares, over the time from the first step to the last."""
    steps, saves = run.merged("step"), run.merged("checkpoint")
    interval = [event for event in run.events() if event["kind"] == "interval"]
    wall_s = sum(sum(step["parts"].values()) for step in steps)
    # The last save belongs to the stop, not to the interval.
    regular = saves[:-1]
    blocked_s = sum(save["blocked_s"] for save in regular)
    busy_s = sum(save["busy_s"] for save in regular)
    return {
        "trained_s": round(wall_s, 1),
        "saves": len(regular),
        "megabytes": round(saves[-1]["bytes"] / 1e6, 1),
        "interval_s": [event["seconds"] for event in interval],
        "blocked_s": round(blocked_s, 3),
        "busy_s": round(busy_s, 3),
        "blocked_share": f"{blocked_s / wall_s:.3%}",
        "whole_share": f"{(blocked_s + busy_s) / wall_s:.3%}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--minutes", type=float, default=6.0)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        storage = Storage(codec="raw")
        data = pack(pictures(root / "pictures"), root / "packed", storage=storage)
        train(data, root / "run", flags.model, flags.minutes)
        print(json.dumps({"model": flags.model, **cost(Run(root / "run"))}, indent=1))


if __name__ == "__main__":
    main()
