"""Packing against a bare loop over the same images: images per CPU-second and per second.

    python benchmarks/packing.py IMAGES [--rounds 5] [--enlarge 1500] [--images N] [--profile]

IMAGES is a folder of photographs, or a tar of them. The bare loop reads a file, decodes it, shrinks
it to the longer side of 500 pixels, encodes it with the pack's encoder and writes nothing: no
checks, no hashes, no tar, no index, no fsync. A JPEG that the pack stores unchanged is decoded but
not encoded, as in the pack. Both run with 1 and with 2 processes. Their rounds alternate, and
ratios are computed within a round. CPU time is user and system time of all processes; the pack's
includes the start of its workers. `--enlarge` makes every photograph larger first, so that each is
shrunk and encoded.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import multiprocessing
import os
import platform
import pstats
import resource
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path

import cv2
import pyarrow.parquet as pq
import simplejpeg

from compare.sets import photographs_in
from figures import spread
from stoker.data.images.encode import Storage, fit, short_hash
from stoker.data.images.jpeg import encode_jpeg
from stoker.data.packing.pack import pack

SHARD_IMAGES = 100
"""Images of a shard: a thousand images are then enough tasks for two workers."""
STORAGE = Storage()


def cpu_s() -> float:
    """User and system time of this process and of children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in used)


def class_folder(images: Path, root: Path, most: int) -> Path:
    """Copies of the photographs below a folder, or in a tar, as files of two classes."""
    folders = [root / "folder" / "train" / name for name in ("even", "odd")]
    for folder in folders:
        folder.mkdir(parents=True)
    for number, path in enumerate(photographs_in(images, root)[: most or None]):
        (folders[number % 2] / f"{number:06d}.jpg").write_bytes(path.read_bytes())
    return root / "folder"


def enlarge(folder: Path, longer: int) -> None:
    """Enlarge every photograph to this longer side, encoded as a camera would."""
    for path in folder.rglob("*.jpg"):
        pixels = simplejpeg.decode_jpeg(path.read_bytes())
        times = longer / max(pixels.shape[:2])
        larger = cv2.resize(pixels, None, fx=times, fy=times, interpolation=cv2.INTER_CUBIC)
        path.write_bytes(simplejpeg.encode_jpeg(larger, quality=92, colorsubsampling="420"))


def bare(paths: list[str], kept: frozenset[str]) -> tuple[int, float]:
    """The work that no pack can leave out; returns images and CPU time of this process."""
    began = time.process_time()
    for path in paths:
        data = Path(path).read_bytes()
        pixels = fit(simplejpeg.decode_jpeg(data), STORAGE)
        if path not in kept:
            encode_jpeg(pixels, STORAGE.quality)
    return len(paths), time.process_time() - began


def kept_by(packed: Path, root: Path) -> frozenset[str]:
    """The files that a pack stored unchanged."""
    kept = set()
    for index in packed.glob("*/index.parquet"):
        rows = pq.read_table(index, columns=["path", "hash"]).to_pylist()
        kept |= {
            str(root / row["path"])
            for row in rows
            if short_hash((root / row["path"]).read_bytes()) == row["hash"]
        }
    return frozenset(kept)


def measured(job: Callable[[], tuple[int, float]]) -> tuple[float, float]:
    """Images per CPU-second and per second."""
    began = time.perf_counter()
    images, cpu = job()
    return images / cpu, images / (time.perf_counter() - began)


def compare(folder: Path, root: Path, rounds: int) -> dict[str, object]:
    """Interleaved rounds of the pack and of the bare loop, with 1 and 2 processes."""
    paths = sorted(map(str, folder.rglob("*.jpg")))
    turn = 0

    def packed(workers: int) -> tuple[int, float]:
        nonlocal turn
        turn += 1
        began = cpu_s()
        pack(folder, root / f"packed-{turn}", shard_images=SHARD_IMAGES, workers=workers)
        return len(paths), cpu_s() - began

    def bare_by_two() -> tuple[int, float]:
        halves = [pool.submit(bare, paths[part::2], kept) for part in (0, 1)]
        done = [half.result() for half in halves]
        return sum(images for images, _ in done), sum(cpu for _, cpu in done)

    packed(1)
    kept = kept_by(root / "packed-1", folder)
    jobs: dict[str, Callable[[], tuple[int, float]]] = {
        "bare 1": lambda: bare(paths, kept),
        "pack 1": lambda: packed(1),
        "bare 2": bare_by_two,
        "pack 2": lambda: packed(2),
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        bare_by_two()
        for _ in range(rounds):
            for name, job in jobs.items():
                rates[name].append(measured(job))
    figures: dict[str, object] = {"images": len(paths), "kept as they are": len(kept)}
    for name, own in rates.items():
        bare_rates = rates[f"bare {name[-1]}"]
        pairs = list(zip(own, bare_rates, strict=True))
        figures[name] = {
            "images_per_cpu_s": spread([cpu for cpu, _ in own]),
            "images_per_s": spread([wall for _, wall in own]),
            "of_bare_per_cpu_s": spread([a[0] / b[0] for a, b in pairs]),
            "of_bare_per_s": spread([a[1] / b[1] for a, b in pairs]),
        }
    return figures


def profile(folder: Path, root: Path) -> None:
    """Print where a pack with one worker spends its time."""
    profiler = cProfile.Profile()
    profiler.runcall(pack, folder, root / "profiled", shard_images=SHARD_IMAGES, workers=1)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("images", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--enlarge", type=int, default=0, metavar="PIXELS")
    parser.add_argument("--images", type=int, default=0, dest="most", metavar="N")
    parser.add_argument("--profile", action="store_true")
    flags = parser.parse_args()
    # OpenCV's threads would be counted in both.
    cv2.setNumThreads(0)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        folder = class_folder(flags.images, root, flags.most)
        if flags.enlarge:
            enlarge(folder, flags.enlarge)
        if flags.profile:
            profile(folder, root)
            return
        packages = ("simplejpeg", "opencv-python-headless", "pillow", "pyarrow")
        facts = {"python": platform.python_version(), "cores": os.cpu_count()}
        print(json.dumps(facts | {name: version(name) for name in packages}))
        for name, row in compare(folder, root, flags.rounds).items():
            print(f"{name}: {json.dumps(row)}", flush=True)


if __name__ == "__main__":
    main()
