"""How long a decoding thread holds the interpreter lock for one image.

    python benchmarks/lock.py IMAGES [--rounds 9]

Each call that releases the lock (reading, decoding, resizing, mirroring) is replaced by one that
does nothing, and the rest is timed: CPU microseconds an image in a decoding thread, and in the
training thread, which requests batches. The compiled extra, which makes a chunk by one such call
(`benchmarks/handovers.py`), is left out. This is an upper bound, except for the time in which the C
functions hold the lock before they release it. IMAGES is a folder or tar of photographs; they are
packed with the longer side at 500 pixels.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from compare.sets import class_folder
from figures import spread_text
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.loading import render
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.order import Order
from stoker.data.packing.pack import pack
from stoker.recipe.schedule import Batch

BATCH, SIZE = 50, 224
BUDGET_US = 50


class TaskList:
    """Accepts tasks as a thread pool does, and keeps them to be timed."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.tasks.append((function, arguments))


def replace_unlocked_calls(split: SplitIndex) -> LoaderOptions:
    """Replace what runs without the lock: decoding and OpenCV here, reading by the options."""
    largest = int(split.widths.max()) * int(split.heights.max()) * 3
    blank = np.zeros(largest, np.uint8)

    def decoded(data: Any, width: int, height: int, scale: int) -> Any:
        high, wide = -(-height // scale), -(-width // scale)
        return blank[: high * wide * 3].reshape(high, wide, 3)

    render.decode_whole = decoded
    render.decode_region = None
    cv2.resize = cv2.flip = lambda *arguments, **options: None
    stored = [bytes(split.bytes_of(sample)) for sample in range(len(split))]

    def read(sample: int, buffer: bytearray) -> memoryview:
        memoryview(buffer)[: int(split.length[sample])]
        split.source.open(int(split.shard[sample]))
        return memoryview(stored[sample])

    return LoaderOptions(read=read, compiled=False)


def rounds(packed: Path, count: int) -> tuple[list[float], list[float]]:
    """CPU microseconds an image of each round: of the training thread, of a decoding thread."""
    split = Dataset(packed).split("train")
    options = replace_unlocked_calls(split)
    view = View(crop="resized", crop_scale=0.08, hflip=True)
    order = Order(split.shard_sizes, "benchmark", seed=0)
    loader = BatchLoader(split, order, view, threads=1, options=options)
    pool = loader._threads = TaskList()  # type: ignore[assignment]
    training, decoding = [], []
    for number in range(count + 1):
        requests_s = tasks_s = 0.0
        images = 0
        for step in range(len(split) // BATCH):
            pool.tasks.clear()
            began = time.thread_time()
            loader._begin(Batch(step, step * BATCH, BATCH, SIZE))
            requests_s += time.thread_time() - began
            began = time.thread_time()
            for function, arguments in pool.tasks:
                function(*arguments)
            tasks_s += time.thread_time() - began
            images += BATCH
        if number:  # the first round fills caches
            training.append(requests_s / images * 1e6)
            decoding.append(tasks_s / images * 1e6)
    return training, decoding


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        packed = pack(class_folder(flags.images, folder), folder / "packed", val_share=0)
        training, decoding = rounds(packed, flags.rounds)
    for thread, values in (("decoding thread", decoding), ("training thread", training)):
        print(f"{thread}: microseconds an image {spread_text(values, 1)}")
    print(f"allowed in a decoding thread: {BUDGET_US}")


if __name__ == "__main__":
    main()
