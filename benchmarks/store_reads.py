"""Loading and training from a real Ceph gateway, beside the same from a folder.

    python benchmarks/store_reads.py speed [--images 3000] [--repeats 3]
    python benchmarks/store_reads.py link [--images 3000] [--rate 100mbit]

`speed`: one epoch of a loader from a folder, from the store with an empty cache, with a full one,
with a cache of a tenth of the set, and without a cache; they take turns. `link`: a training run
whose store is behind a link of this rate, what its verdict predicts without that wait, and the same
run with a free link. Needs root (network namespaces) and Ceph (.ci/run installs both). All of it is
on one machine, so the gateway takes cores from the reader.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from integration.namespaces import Cluster, Machine
from object_store import Gateway, ceph
from stoker.data.packing.pack import pack
from stoker.run.directory import Run

SIDE = (320, 240)
EPOCH = """
import json, sys, time
import stoker
began = time.perf_counter()
with stoker.Loader(sys.argv[1], batch_size=64, image_size=160, dtype="uint8", threads=2) as loader:
    waited, images, first_s = 0.0, 0, 0.0
    batches = iter(loader)
    start = time.perf_counter()
    while (batch := next(batches, None)) is not None:
        first_s = first_s or time.perf_counter() - start
        images += len(batch[1])
    seconds, cpu_s = time.perf_counter() - start, time.process_time()
    source = loader._index.source
    counts = [getattr(source, name, 0) for name in ("fetched", "ranges")]
print(json.dumps({"rate": images / seconds, "first_s": first_s, "cpu_s": cpu_s, "counts": counts}))
"""
CASES = ("folder", "empty cache", "full cache", "a tenth", "no cache")
TRAIN = (
    *("--model", "resnet9_w8", "--image-size", "64", "--batch-size", "64", "--epochs", "1"),
    *("--no-report", "--no-rehearse"),
)


def photographs(root: Path, images: int) -> Path:
    """JPEGs of smooth noise, of about the bytes of a photograph of this size."""
    rng = np.random.default_rng(0)
    width, height = SIDE
    for number in range(images):
        coarse = rng.integers(0, 256, (height // 8, width // 8, 3), np.uint8)
        fine = np.kron(coarse, np.ones((8, 8, 1), np.uint8)).astype(np.int16)
        pixels = np.clip(fine + rng.normal(0, 14, fine.shape), 0, 255).astype(np.uint8)
        path = root / "train" / f"class{number % 10}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(simplejpeg.encode_jpeg(pixels, 90))
    return root


def call(machine: Machine, words: list[str], variables: dict[str, str], cwd: Path) -> str:
    """What a Python command prints on a machine; it must end with 0."""
    command = ["ip", "netns", "exec", machine.space, sys.executable, *words]
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{words}: {done.stdout}{done.stderr}")
    return done.stdout


def measure_speed(
    reader: Machine, gateway: Gateway, packed: Path, location: str, root: Path, repeats: int
) -> None:
    total = sum(file.stat().st_size for file in packed.rglob("*.tar"))
    rows: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
    for _ in range(repeats):
        for case in CASES:
            cache = root / ("warm" if case == "full cache" else "cold")
            if case != "full cache":
                shutil.rmtree(cache, ignore_errors=True)
            limit = {"a tenth": total / 1e10, "no cache": 0.0}.get(case)
            variables = {**gateway.variables, "STOKER_CACHE": str(cache)}
            if limit is not None:
                variables["STOKER_CACHE_GB"] = f"{limit:.9f}"
            place = str(packed) if case == "folder" else location
            if case == "full cache" and not rows[case]:
                call(reader, ["-c", EPOCH, place], variables, root)
            rows[case].append(json.loads(call(reader, ["-c", EPOCH, place], variables, root)))
    print(f"\n{total / 1e6:.0f} MB, medians of {repeats} (smallest to largest)\n")
    print("| from | images/s | first batch after | CPU of the reader | shards, images by range |")
    print("|---|---|---|---|---|")
    for case, results in rows.items():
        rates = sorted(result["rate"] for result in results)
        first, cpu = (statistics.median(r[name] for r in results) for name in ("first_s", "cpu_s"))
        rate = f"{statistics.median(rates):.0f} ({rates[0]:.0f} to {rates[-1]:.0f})"
        counts = results[-1]["counts"]
        print(f"| {case} | {rate} | {first:.2f} s | {cpu:.1f} s | {counts[0]}, {counts[1]:,} |")


def measure_link(
    server: Machine, reader: Machine, gateway: Gateway, location: str, root: Path, rate: str
) -> None:
    steps: dict[str, Run] = {}
    for name, limit in (("limited", rate), ("free", None)):
        server.rate(limit)
        variables = {**gateway.variables, "STOKER_CACHE": str(root / f"cache-{name}")}
        run = root / name
        words = ["-m", "stoker", "train", location, "--run", str(run), *TRAIN]
        call(reader, words, variables, root)
        steps[name] = Run(run)
    server.rate(None)
    verdicts = {name: list(run.events())[::-1] for name, run in steps.items()}
    last = next(event for event in verdicts["limited"] if event["kind"] == "verdict")
    free = next(event for event in verdicts["free"] if event["kind"] == "verdict")
    print(f"\nwith a link of {rate}: {last['cause']}: {last['words']}: {last['evidence']}")
    actual, predicted = free["step_s"], last["without_s"]
    print(f"a step takes {last['step_s']:.3f} s; predicted without the wait {predicted:.3f} s")
    print(
        f"with a free link it takes {actual:.3f} s: the prediction is off by "
        f"{100 * (predicted / actual - 1):+.0f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("speed", "link"))
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rate", default="100mbit")
    flags = parser.parse_args()
    cluster = Cluster(2)
    server, reader = cluster.machines
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            packed = pack(
                photographs(root / "photos", flags.images),
                root / "packed",
                val_share=0,
                shard_images=max(flags.images // 60, 1),
            )
            inside = ("ip", "netns", "exec", server.space)
            with ceph(address=server.address, inside=inside) as gateway:
                location = f"s3://{gateway.make_bucket('benchmark')}/set"
                call(
                    reader,
                    ["-m", "stoker", "upload", str(packed), location],
                    dict(gateway.variables),
                    root,
                )
                if flags.what == "speed":
                    measure_speed(reader, gateway, packed, location, root, flags.repeats)
                else:
                    measure_link(server, reader, gateway, location, root, flags.rate)
        finally:
            cluster.remove()


if __name__ == "__main__":
    main()
