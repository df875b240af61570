"""The cost of checkpoints at the default interval.

    python benchmarks/saving.py [--model resnet18] [--minutes 6]
    python benchmarks/saving.py --lock [--model resnet152] [--optimizer sgd] [--saves 5]

The first trains in a separate process, as a user would, on small generated images, with every key
that concerns saving at its default. Then adds up, from the run's events, the time that training
waited for saves and the time that a core worked on them at the same time. The sum is the most that
saving can have cost.

The second saves a model with its moving average and optimiser again and again. It measures how long
the snapshot blocks training, and the longest time for which a save holds the interpreter lock: for
that long no thread decodes an image or launches a kernel. It takes quiet cores.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.host.threads import LockMeter
from stoker.recipe.recipe import Recipe
from stoker.run.directory import Run
from stoker.survive.checkpoint import write_checkpoint
from stoker.train.device import build_on_device
from stoker.train.state import TrainState

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


def state_of(model: str, optimizer: str) -> TrainState:
    """A state with a moving average and, after one step, what the optimiser keeps."""
    recipe = Recipe(model=model, ema=True, optimizer=optimizer)
    built, _ = build_on_device(recipe, 1000, torch.device("cpu"))
    state = TrainState.fresh(recipe, built, torch.device("cpu"))
    for parameter in built.parameters():
        parameter.grad = torch.zeros_like(parameter)
    state.optimizer.step()
    state.optimizer.zero_grad()
    return state


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def full_collections() -> int:
    """How often Python has looked at all objects for garbage, which holds the lock as well."""
    return int(gc.get_stats()[2]["collections"])


def saves(state: TrainState, folder: Path, count: int) -> Iterator[dict[str, float]]:
    """What each save took: blocked training, in the background, the lock; memory that it added."""
    for number in range(count):
        collected = full_collections()
        with LockMeter() as blocked:
            began = time.perf_counter()
            snapshot = state.snapshot({})
            blocked_s = time.perf_counter() - began
        before_mb, began = peak_mb(), time.perf_counter()
        with LockMeter() as meter:
            size = write_checkpoint(folder / f"{number:09d}", snapshot)
            del snapshot
        yield {
            "megabytes": round(size / 1e6, 1),
            "snapshot_ms": round(1000 * blocked_s, 1),
            "snapshot_held_ms": round(1000 * blocked.longest_s, 2),
            "save_ms": round(1000 * (time.perf_counter() - began), 1),
            "held_ms": round(1000 * meter.longest_s, 2),
            "full_collections": full_collections() - collected,
            "added_mb": round(peak_mb() - before_mb, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--lock", action="store_true")
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--saves", type=int, default=5)
    flags = parser.parse_args()
    flags.model = flags.model or ("resnet152" if flags.lock else "resnet18")
    if flags.lock:
        with tempfile.TemporaryDirectory() as name:
            for save in saves(state_of(flags.model, flags.optimizer), Path(name), flags.saves):
                print(json.dumps(save), flush=True)
        return
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        storage = Storage(codec="raw")
        data = pack(pictures(root / "pictures"), root / "packed", storage=storage)
        train(data, root / "run", flags.model, flags.minutes)
        print(json.dumps({"model": flags.model, **cost(Run(root / "run"))}, indent=1))


if __name__ == "__main__":
    main()
