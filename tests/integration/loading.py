"""Loaders in separate processes, for tests of memory and pauses.

    python loading.py bare|load|slope|threads SET [RANK WORLD]

Prints one line of JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View
from stoker.data.loading.loader import DECODERS, BatchLoader
from stoker.data.loading.order import Order, lanes_for
from stoker.recipe.schedule import Batch

BATCH, SIZE = 64, 64
SLOPE_BATCH, EVERY, EPOCHS = 2, 100, 5


def memory_kb(*names: str) -> dict[str, int]:
    """Some lines of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return {name: int(status[name].split()[0]) for name in names}


def endless(samples: int, size: int, epochs: int) -> Iterator[Batch]:
    """Batches that run through the ends of epochs."""
    for step, position in enumerate(range(0, epochs * samples - size + 1, size)):
        yield Batch(step, position, size, SIZE)


def loader_of(packed: str, batch: int, rank: int = 0, world: int = 1) -> BatchLoader:
    split = Dataset(packed).split("train")
    order = Order(split.shard_sizes, "test", seed=0, lanes=lanes_for(len(split), [batch]))
    threads = 0 if world == 1 else 1
    view = View(crop="resized", hflip=True)
    return BatchLoader(split, order, view, rank=rank, world=world, threads=threads)


def main() -> None:
    task, packed = sys.argv[1:3]
    if task == "bare":
        print(json.dumps(memory_kb("VmRSS", "RssAnon", "RssFile")))
        return
    if task == "load":
        rank, world = map(int, sys.argv[3:5])
        loader = loader_of(packed, BATCH, rank, world)
        images, peaks = 0, memory_kb("VmRSS", "RssAnon", "RssFile")
        for loaded in loader.batches(endless(len(loader.split), BATCH, 1)):
            images += len(loaded.images)
            now = memory_kb(*peaks)
            peaks = {name: max(peaks[name], now[name]) for name in peaks}
        print(json.dumps({"images": images, **peaks}))
        return
    loader = loader_of(packed, SLOPE_BATCH)
    if task == "threads":
        next(loader.batches(endless(len(loader.split), SLOPE_BATCH, 1)))
        names = [thread.name for thread in threading.enumerate()]
        print(json.dumps(sum(name.startswith(DECODERS) for name in names)))
        return
    rows = []
    for loaded in loader.batches(endless(len(loader.split), SLOPE_BATCH, EPOCHS)):
        if loaded.batch.step % EVERY == 0:
            gc.collect()
            rows.append({"batch": loaded.batch.step, **memory_kb("RssAnon", "VmRSS")})
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
