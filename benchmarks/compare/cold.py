"""Our loader from the disk and from the page cache, and reading alone.

Invariants: before each cold pass the files are synced and dropped from the page cache, and no map
of a shard is open (the kernel keeps mapped pages). The share that was still cached and the share
that came from the disk are measured and shown, so that a "cold" pass that was not cold can be
recognised.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare.sets import VARIANTS, stored
from figures import spread_text
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import Order
from stoker.host.limits import usable_cores
from stoker.host.page_cache import bytes_from_storage, cached_share, drop
from stoker.recipe.schedule import Batch

BATCH = 250


def order_of(split: SplitIndex, seed: int) -> Order:
    return Order(split.shard_sizes, "benchmark", seed=seed)


def read(split: SplitIndex, seed: int) -> int:
    """Read every stored byte in the order of training, with one thread, without decoding."""
    samples, _ = order_of(split, seed).part(0, len(split), 0, len(split))
    for sample in samples.tolist():
        bytes(split.bytes_of(sample))
    return len(samples)


def load(split: SplitIndex, seed: int) -> int:
    view = View(crop="resized", crop_scale=0.08, hflip=True)
    loader = BatchLoader(split, order_of(split, seed), view, threads=usable_cores())
    batch = min(BATCH, len(split))
    plan = [Batch(step, step * batch, batch, 224) for step in range(len(split) // batch)]
    images = sum(len(loaded.images) for loaded in loader.batches(plan))
    loader.close()
    return images


def one_pass(work: Callable[[SplitIndex, int], int], packed: Path, is_cold: bool, seed: int) -> Any:
    """Figures of one pass. Stops where the kernel does not count what comes from the disk."""
    shards = sorted((packed / "train").glob("*.tar"))
    if is_cold:
        gc.collect()
        drop(shards)
    cached = cached_share(shards)
    split = Dataset(packed).split("train")
    began, before = time.perf_counter(), bytes_from_storage()
    images = work(split, seed)
    wall_s, after = time.perf_counter() - began, bytes_from_storage()
    assert cached is not None and before is not None and after is not None
    return {
        "images_per_s": images / wall_s,
        "mb_per_s": int(split.length.sum()) / wall_s / 1e6,
        "held_before": cached,
        "fetched_share": (after - before) / sum(shard.stat().st_size for shard in shards),
    }


def measure(folder: Path, root: Path, rounds: int, report: Callable[[str], None]) -> dict[str, Any]:
    """Reading alone and loading, alternately cold and warm, for both ways of storing."""
    passes: dict[str, Any] = {}
    for name in ("originals-training", "500-training"):
        packed = stored(VARIANTS[name], folder, root).packed
        for number in range(rounds + 1):
            for title, work in {"read": read, "load": load}.items():
                for state in ("cold", "warm"):
                    figures = one_pass(work, packed, state == "cold", number)
                    if number:
                        passes.setdefault(f"{name} {title} {state}", []).append(figures)
        report(f"{name} is done")
    return passes


def table(passes: dict[str, Any]) -> list[str]:
    """The Markdown table of all passes."""
    lines = [
        "| set | work | images per second | MB per second | in memory before | from disk |",
        "|---|---|---|---|---|---|",
    ]
    for name, rounds in passes.items():
        median = {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}
        rates = spread_text([figures["images_per_s"] for figures in rounds], 0)
        kind, title, state = name.split()
        lines.append(
            f"| {kind.removesuffix('-training')} | {title}, {state} | {rates} "
            f"| {median['mb_per_s']:.0f} | {median['held_before']:.0%} "
            f"| {median['fetched_share']:.0%} |"
        )
    return [*lines, ""]
