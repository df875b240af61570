"""What `stoker.Loader` pays for tensors that it never writes again: CPU time an image.

    python benchmarks/tensors.py [--rounds 9]

A batch of 256 images of 224 px is normalised into memory that is used again, into new memory, and
into memory that is used again with a copy handed out. The three alternate.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from stoker.data.loading.torch_loader import IMAGENET_MEAN, IMAGENET_STD, Planes
from stoker.recipe.schedule import Batch

IMAGES, SIDE, CHUNK = 256, 224, 16
SAMPLES = np.arange(IMAGES)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    planes = Planes("float32", IMAGENET_MEAN, IMAGENET_STD)
    batch = Batch(0, 0, IMAGES, SIDE)
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, SIDE, SIDE, 3), np.uint8)
    kept = planes.room(batch, SAMPLES, SAMPLES)

    def fill(target: torch.Tensor) -> torch.Tensor:
        loaded: Any = SimpleNamespace(images=pixels, drawn=target)
        for start in range(0, IMAGES, CHUNK):
            planes.fill(loaded, start, start + CHUNK)
        return target

    ways: dict[str, Callable[[], object]] = {
        "used again": lambda: fill(kept),
        "new": lambda: fill(planes.room(batch, SAMPLES, SAMPLES)),
        "used again, and copied": lambda: fill(kept).clone(),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            way()
            times[name].append((time.process_time() - began) * 1000 / IMAGES)
    for name, values in times.items():
        middle = statistics.median(values)
        print(f"{name:<24} {middle:.2f} ms an image ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
