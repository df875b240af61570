"""How long a decoding thread holds the interpreter lock for one image.

    python benchmarks/lock.py IMAGES [--rounds 9]

Everything that lets go of the lock (reading, decoding, resizing, mirroring) is replaced by a call
that does nothing, and what is left is timed: CPU microseconds an image in a decoding thread, and in
the thread that trains (which asks for batches). An upper bound but for what the C functions do
before they let go. IMAGES is a folder or tar of photographs, packed with the longer side at 500.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from compare.sets import class_folder
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.loading import render as decode
from stoker.data.loading.crops import View
from stoker.data.loading.loader import Loader
from stoker.data.loading.order import Order
from stoker.data.packing.pack import pack
from stoker.recipe.schedule import Batch

BATCH, SIZE = 50, 224
BUDGET_US = 50


class Kept:
    """Takes work as a pool does and leaves it to be timed."""

    def __init__(self) -> None:
        self.work: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.work.append((function, arguments))


def without_the_unlocked(split: Any) -> None:
    """Leave out what runs without the lock."""
    largest = int(split.widths.max()) * int(split.heights.max()) * 3
    blank = np.zeros(largest, np.uint8)

    def decoded(data: Any, width: int, height: int, scale: int) -> Any:
        high, wide = -(-height // scale), -(-width // scale)
        return blank[: high * wide * 3].reshape(high, wide, 3)

    decode.decode_whole = decoded
    decode.decode_region = None
    cv2.resize = cv2.flip = lambda *arguments, **options: None
    known = [bytes(split.bytes_of(sample)) for sample in range(len(split))]

    def bytes_before(self: SplitIndex, sample: int, into: bytearray) -> memoryview:
        memoryview(into)[: int(self.length[sample])]
        self._open(int(self.shard[sample]))
        return memoryview(known[sample])

    SplitIndex.bytes_of = bytes_before


def rounds(packed: Path, count: int) -> tuple[list[float], list[float]]:
    split = Dataset(packed).split("train")
    without_the_unlocked(split)
    view = View(crop="resized", crop_scale=0.08, hflip=True)
    loader = Loader(split, Order(split.shard_sizes, "benchmark", seed=0), view, threads=1)
    kept = loader._threads = Kept()  # type: ignore[assignment]
    asking, filling = [], []
    for number in range(count + 1):
        asked = filled = 0.0
        images = 0
        for step in range(len(split) // BATCH):
            kept.work.clear()
            began = time.thread_time()
            loader._begin(Batch(step, step * BATCH, BATCH, SIZE))
            asked += time.thread_time() - began
            began = time.thread_time()
            for function, arguments in kept.work:
                function(*arguments)
            filled += time.thread_time() - began
            images += BATCH
        if number:  # the first fills caches
            asking.append(asked / images * 1e6)
            filling.append(filled / images * 1e6)
    return asking, filling


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        packed = pack(class_folder(given.images, place), place / "packed", val_share=0)
        asking, filling = rounds(packed, given.rounds)
    for what, found in (("decoding thread", filling), ("training thread", asking)):
        spread = f"{min(found):.1f} to {max(found):.1f}"
        print(f"{what}: {statistics.median(found):.1f} microseconds an image ({spread})")
    print(f"allowed in a decoding thread: {BUDGET_US}")


if __name__ == "__main__":
    main()
