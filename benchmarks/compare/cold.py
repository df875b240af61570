"""Our loader from disk and from memory, and what reading alone gives.

Invariants: before each cold pass no map of a shard is open (the kernel keeps pages that are
mapped), the files are synced and dropped; how much of them was still in memory and how much was
read from the disk is measured and shown, so that a "cold" that was not is seen.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from compare.sets import VARIANTS, stored
from stoker.data.dataset import Dataset, SplitIndex
from stoker.data.loading.crops import View
from stoker.data.loading.loader import Loader
from stoker.data.loading.order import Order
from stoker.host.limits import usable_cores
from stoker.recipe.schedule import Batch

BATCH = 250


def drop(shards: list[Path]) -> None:
    gc.collect()
    for shard in shards:
        with shard.open("rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def in_memory(shards: list[Path]) -> float:
    """The share of the shards' pages that the page cache holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    held = pages = 0
    for shard in shards:
        with shard.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        view = np.frombuffer(mapped, np.uint8)
        states = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
        asked = (ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(view)))
        if libc.mincore(*asked, ctypes.c_void_p(states.ctypes.data)):
            raise OSError(ctypes.get_errno(), f"mincore of {shard}")
        held += int((states & 1).sum())
        pages += len(states)
        del view
        mapped.close()
    return held / pages


def disk_bytes() -> int:
    """Bytes that this process has had fetched from storage so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise OSError("/proc/self/io has no read_bytes")


def order_of(split: SplitIndex, seed: int) -> Order:
    return Order(split.shard_sizes, "benchmark", seed=seed)


def read(split: SplitIndex, seed: int) -> int:
    """Every stored byte in the order of training, on one thread, not decoded."""
    samples, _ = order_of(split, seed).part(0, len(split), 0, len(split))
    for sample in samples.tolist():
        bytes(split.bytes_of(sample))
    return len(samples)


def load(split: SplitIndex, seed: int) -> int:
    view = View(crop="resized", crop_scale=0.08, hflip=True)
    loader = Loader(split, order_of(split, seed), view, threads=usable_cores())
    batch = min(BATCH, len(split))
    plan = [Batch(step, step * batch, batch, 224) for step in range(len(split) // batch)]
    images = sum(len(loaded.images) for loaded in loader.batches(plan))
    loader.close()
    return images


def one_pass(work: Callable[[SplitIndex, int], int], packed: Path, is_cold: bool, seed: int) -> Any:
    shards = sorted((packed / "train").glob("*.tar"))
    if is_cold:
        drop(shards)
    held = in_memory(shards)
    split = Dataset(packed).split("train")
    began, fetched = time.perf_counter(), disk_bytes()
    images = work(split, seed)
    took_s = time.perf_counter() - began
    return {
        "images_per_s": images / took_s,
        "mb_per_s": int(split.length.sum()) / took_s / 1e6,
        "held_before": held,
        "fetched_share": (disk_bytes() - fetched) / sum(shard.stat().st_size for shard in shards),
    }


def measure(folder: Path, place: Path, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """For both ways of storing: reading alone and loading, cold and warm in turns."""
    found: dict[str, Any] = {}
    for name in ("originals-training", "500-training"):
        packed = stored(VARIANTS[name], folder, place).packed
        for number in range(rounds + 1):
            for what, work in {"read": read, "load": load}.items():
                for state in ("cold", "warm"):
                    passed = one_pass(work, packed, state == "cold", number)
                    if number:
                        found.setdefault(f"{name} {what} {state}", []).append(passed)
        say(f"{name} is over")
    return found


def table(found: dict[str, Any]) -> list[str]:
    lines = [
        "| set | work | images per second | MB per second | in memory before | from disk |",
        "|---|---|---|---|---|---|",
    ]
    for name, passes in found.items():
        middle = {key: statistics.median(each[key] for each in passes) for key in passes[0]}
        least, most = (pick(each["images_per_s"] for each in passes) for pick in (min, max))
        kind, what, state = name.split()
        lines.append(
            f"| {kind.removesuffix('-training')} | {what}, {state} | {middle['images_per_s']:.0f} "
            f"({least:.0f} to {most:.0f}) | {middle['mb_per_s']:.0f} "
            f"| {middle['held_before']:.0%} | {middle['fetched_share']:.0%} |"
        )
    return [*lines, ""]
