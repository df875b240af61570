"""How often threads hand over the interpreter lock to load one image, and what that costs.

    python benchmarks/handovers.py IMAGES [--seconds 5]
    python benchmarks/handovers.py --asleep [--seconds 5]

The first command counts: photographs (longer side 500, 224 px crops) and raw images of 64 px are
loaded with and without the compiled extra, in the first epoch, which compares hashes, and later. A
small library, compiled here and loaded before all others, counts `pthread_cond_signal`, by which
CPython lets go of its lock. The count is divided by that of a call known to let go of it once. All
threads are counted, the one that asks for batches too. IMAGES is a folder or tar of photographs.

The second command shows what handovers cost with more cores than this machine has: 12 decoding
threads go through the real loader and the real call of the extra, but sleep for 1150 us an image
instead of decoding. The rate is compared with 12 threads without any lock, and 300 small kernel
launches of the training thread (3 us of Python, then a call that lets go of the lock) with the same
launches alone.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from compare.sets import VARIANTS, class_folder, stored
from figures import spread_text
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.loading import chunk_call, render
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader, LoaderOptions
from stoker.data.loading.order import Order
from stoker.data.packing.pack import pack
from stoker.host.limits import usable_cores
from stoker.recipe.schedule import Batch

SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
static atomic_long signals;
long signals_until_now(void) { return atomic_load(&signals); }
int pthread_cond_signal(pthread_cond_t *condition) {
  static int (*next)(pthread_cond_t *);
  if (!next) next = (int (*)(pthread_cond_t *))dlsym(RTLD_NEXT, "pthread_cond_signal");
  atomic_fetch_add(&signals, 1);
  return next(condition);
}
"""
COUNTER = "STOKER_SIGNAL_COUNTER"
BATCH, EPOCHS, CALLS = 250, 4, 10_000
IMAGES = 10_000
"""Of the set whose decoding is replaced by sleep; their pixels do not matter."""
THREADS, IMAGE_US, LAUNCHES, LAUNCH_US, EVERY_S = 12, 1150, 300, 3, 0.1
TRAINING = View(crop="resized", crop_scale=0.08, hflip=True)
SHIFTED = View(crop="pad", crop_pct=1.0, hflip=True)


def count_in_a_process(images: Path) -> None:
    """Run this command again with the counting library loaded before all others."""
    with tempfile.TemporaryDirectory() as name:
        source, library = Path(name) / "signals.c", Path(name) / "signals.so"
        source.write_text(SHIM, encoding="utf-8")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        variables = {"LD_PRELOAD": str(library), COUNTER: str(library)}
        subprocess.run(
            [sys.executable, __file__, str(images)], env=os.environ | variables, check=True
        )


def handover_counter() -> Callable[[], float]:
    """A function that returns the handovers of this process until now."""
    signals = ctypes.PyDLL(os.environ[COUNTER]).signals_until_now  # keeps the lock
    signals.restype = ctypes.c_long
    before = signals()
    for _ in range(CALLS):
        time.sleep(0)  # lets go of the lock once
    each = (signals() - before) / CALLS
    assert each >= 1, "this Python does not hand its lock over by pthread_cond_signal"
    return lambda: signals() / each


def use_extra(extra: Any, decode_region: Any) -> None:
    chunk_call.extra = extra
    render.decode_region = decode_region


def handovers(split: SplitIndex, view: View, size: int) -> list[float]:
    """Handovers an image in each epoch."""
    now = handover_counter()
    order = Order(split.shard_sizes, "benchmark", seed=0)
    loader = BatchLoader(split, order, view, threads=usable_cores())
    batches = len(split) // BATCH
    figures = []
    for epoch in range(EPOCHS):
        plan = [
            Batch(s, s * BATCH, BATCH, size) for s in range(epoch * batches, (epoch + 1) * batches)
        ]
        before = now()
        images = sum(len(loaded.images) for loaded in loader.batches(plan))
        figures.append((now() - before) / images)
    loader.close()
    return figures


def count(images: Path) -> None:
    extra, decode_region = chunk_call.extra, render.decode_region
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        folder = class_folder(images, root)
        # In this process: workers would be counted by libraries of their own.
        packed = pack(folder, root / "packed", val_share=0, workers=1)
        tiles = stored(VARIANTS["raw-64"], folder, root, raw_images=5000).packed
        cases = (("photographs", packed, TRAINING, 224), ("raw, 64 px", tiles, SHIFTED, 64))
        for title, path, view, size in cases:
            for way, use in (("Python", (None, None)), ("extra", (extra, decode_region))):
                if way == "extra" and extra is None:
                    print(f"{title}, extra: not measured: {chunk_call.WHY_NOT}")
                    continue
                use_extra(*use)
                first, *later = handovers(Dataset(path).split("train"), view, size)
                epochs = f"{first:.3f} in the first epoch, {spread_text(later, 3)} later"
                print(f"{title}, {way}: handovers an image {epochs}", flush=True)


class Asleep:
    """The extra whose calls sleep instead of reading and decoding."""

    def __init__(self, extra: Any) -> None:
        self._extra = extra

    def __getattr__(self, name: str) -> Any:
        return getattr(self._extra, name)

    def fill(self, *call: Any) -> Any:
        *buffers, size, _steps, raw = call
        return self._extra.fill(*buffers, size, self._extra.SLEEP, raw, IMAGE_US * 1000)


def launches() -> float:
    """Seconds of some small launches, each of which lets go of the lock."""
    library = ctypes.CDLL(None)
    began = time.perf_counter()
    for _ in range(LAUNCHES):
        until = time.perf_counter() + LAUNCH_US * 1e-6
        while time.perf_counter() < until:
            pass
        library.getppid()
    return time.perf_counter() - began


def launches_each_interval(seconds: float, between: Callable[[], object]) -> list[float]:
    """Seconds of the launches at each interval; `between` is called until the next one is due."""
    figures = []
    end = due = time.perf_counter()
    end += seconds
    while time.perf_counter() < end:
        if time.perf_counter() >= due:
            figures.append(launches())
            due += EVERY_S
        between()
    return figures


def plan() -> Iterator[Batch]:
    for step in range(1 << 40):
        yield Batch(step, step * 256, 256, 8)


def asleep(seconds: float) -> None:
    if chunk_call.extra is None:
        raise SystemExit(f"not measured: {chunk_call.WHY_NOT}")
    chunk_call.extra = Asleep(chunk_call.extra)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "photos" / "class"
        folder.mkdir(parents=True)
        for number in range(IMAGES):
            colour = (number % 256, number // 256, 0)
            Image.new("RGB", (16, 16), colour).save(folder / f"{number}.jpg")
        (folder.parent / "other").mkdir()
        (folder / "0.jpg").rename(folder.parent / "other" / "0.jpg")
        packed = pack(folder.parent, Path(name) / "packed", val_share=0, workers=1)
        split = Dataset(packed).split("train")
        for shard in range(len(split.shards)):
            split.source.open(shard)
    options = LoaderOptions(check_hashes=False)
    order = Order(split.shard_sizes, "benchmark", seed=0)
    loader = BatchLoader(split, order, TRAINING, threads=THREADS, prefetch=4, options=options)
    alone = launches_each_interval(seconds, lambda: time.sleep(0.005))
    batches = loader.batches(plan())
    for _ in range(8):
        next(batches)
    made = 0

    def batch() -> None:
        nonlocal made
        made += len(next(batches).images)

    began = time.perf_counter()
    beside = launches_each_interval(seconds, batch)
    rate = made / (time.perf_counter() - began)
    batches.close()
    loader.close()
    unlocked = THREADS * 1e6 / IMAGE_US
    print(f"images a second: {rate:,.0f}, without a lock {unlocked:,.0f}: {rate / unlocked:.3f}")
    medians = [statistics.median(figures) for figures in (beside, alone)]
    texts = [spread_text([s * 1e3 for s in figures], 2) for figures in (beside, alone)]
    print(
        f"{LAUNCHES} launches, ms: {texts[0]} beside loading, {texts[1]} alone: "
        f"{medians[0] / medians[1]:.2f} times"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path, nargs="?")
    parser.add_argument("--asleep", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0)
    flags = parser.parse_args()
    if flags.asleep:
        asleep(flags.seconds)
    elif flags.images is None:
        parser.error("name a folder or tar of photographs, or --asleep")
    elif COUNTER in os.environ:
        count(flags.images)
    else:
        count_in_a_process(flags.images)


if __name__ == "__main__":
    main()
