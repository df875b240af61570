"""What comparing every image with its hash adds to the first epoch: CPU time of the loader.

    python benchmarks/hashes.py IMAGES [--rounds 9]

IMAGES is a folder or tar of photographs. They are packed as JPEG with the longer side at 500 px,
as JPEG with their own bytes, and as raw pixels of 32 x 32. Loaders with and without the check take
turns batch by batch in one process, for an epoch of 224-pixel (raw: 32-pixel) random crops from the
page cache; a figure is of one epoch by both. This is data loading alone: an epoch of training takes
more CPU time, so that the share of it is smaller.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from compare.sets import class_folder, tiles
from figures import quartiles
from stoker.data.dataset import Dataset
from stoker.data.images.encode import Storage
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.order import Order
from stoker.data.packing.pack import pack
from stoker.recipe.schedule import Batch

BATCH, TILES, SIDE = 50, 20_000, 32
SETS = {
    "jpeg": (Storage(), 224, View(crop="resized", crop_scale=0.08, hflip=True)),
    "original": (Storage("original"), 224, View(crop="resized", crop_scale=0.08, hflip=True)),
    "raw": (Storage("raw"), SIDE, View(crop="pad", crop_pct=1.0, hflip=True)),
}


def epoch(packed: Path, size: int, view: View) -> tuple[float, float]:
    """What the check adds to an epoch: per cent of its CPU time, and microseconds an image."""
    split = Dataset(packed).split("train")
    order = Order(split.shard_sizes, "benchmark", seed=0)
    plan = [Batch(step, step * BATCH, BATCH, size) for step in range(len(split) // BATCH)]
    loaders = [
        # One batch at a time, so that its work is done while it is waited for.
        BatchLoader(
            split, order, view, threads=1, prefetch=1, options=LoaderOptions(check_hashes=check)
        )
        for check in (False, True)
    ]
    batches = [loader.batches(plan) for loader in loaders]
    seconds = [0.0, 0.0]
    for step in range(len(plan)):
        for number in (0, 1) if step % 2 else (1, 0):
            began = time.process_time()
            next(batches[number])
            seconds[number] += time.process_time() - began
    for loader in loaders:
        loader.close()
    plain, checked = seconds
    return 100 * (checked / plain - 1), 1e6 * (checked - plain) / (len(plan) * BATCH)


def quartile_text(values: tuple[float, ...]) -> str:
    lower, middle, upper = quartiles(values, 1).values()
    return f"{middle} (quartiles {lower} to {upper})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        photographs = class_folder(flags.images, root)
        for codec, (storage, size, view) in SETS.items():
            raw = codec == "raw"
            folder = tiles(photographs, root / "tiles", SIDE, TILES) if raw else photographs
            packed = pack(folder, root / codec, storage=storage, val_share=0)
            epoch(packed, size, view)  # fills the page cache
            rounds = [epoch(packed, size, view) for _ in range(flags.rounds)]
            shares, added = zip(*rounds, strict=True)
            print(
                f"{codec}: {quartile_text(shares)} % of the loader's CPU time, "
                f"{quartile_text(added)} microseconds an image, {len(shares)} epochs",
                flush=True,
            )


if __name__ == "__main__":
    main()
