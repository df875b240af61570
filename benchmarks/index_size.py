"""What the index of a large set costs: its bytes on the disk, and the time and memory to open it.

    python benchmarks/index_size.py write FOLDER --images 100e6
    python benchmarks/index_size.py write FOLDER --images 1e9 --hosts 100    (one host's rows only)
    python benchmarks/index_size.py open FOLDER --hosts 100

`write` makes the tables of a packed set as `stoker pack` does, from random rows; there are no
shards. With --hosts it writes the whole table of shards, but only the rows that the first
host reads in its first epoch. `open` does, in a process of its own, what training does before its
first image is read: it opens the set and the split, makes the order, and reads the rows of the
first windows of all lanes of the first host. Peak memory is that of the whole process; that of the
libraries is stated beside it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker.commit import sha256_json, write_json
from stoker.data.dataset import Dataset
from stoker.data.index.shard_table import TABLE, RowsFile, rows_name, write_shard_table
from stoker.data.loading.order import WINDOW, Order, lanes_for
from stoker.data.packing.tables.index_writer import write_table
from stoker.data.seal import FORMAT, sealed

SHARD_IMAGES, CLASSES, BATCH = 1000, 1000, 256
IMAGE_BYTES = 110_000
FINGERPRINT = "benchmark"


def rows_table(number: int, images: int, seed: np.random.Generator) -> pa.Table:
    """The rows of one shard, with names and paths like those of ImageNet."""
    first = number * SHARD_IMAGES
    length = seed.integers(IMAGE_BYTES // 2, IMAGE_BYTES * 3 // 2, images, dtype=np.int32)
    offset = 512 + np.concatenate(([0], np.cumsum(length.astype(np.int64) + 2048)[:-1]))
    label = seed.integers(0, CLASSES, images, dtype=np.int32)
    hashes, pixels = (seed.bytes(16 * images) for _ in range(2))
    columns = {
        "key": pa.array([f"{first + row:09d}" for row in range(images)]),
        "shard": pa.array(np.full(images, number, np.int32)),
        "offset": pa.array(offset),
        "length": pa.array(length),
        "label": pa.array(label),
        "width": pa.array(seed.integers(300, 500, images, dtype=np.int32)),
        "height": pa.array(seed.integers(300, 500, images, dtype=np.int32)),
        "hash": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), images, [None, pa.py_buffer(hashes)]
        ),
        "pixels": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), images, [None, pa.py_buffer(pixels)]
        ),
        "orientation": pa.array(np.ones(images, np.int8)),
        "path": pa.array(
            [f"train/n{c:08d}/n{c:08d}_{first + r}.JPEG" for r, c in enumerate(label)]
        ),
    }
    return pa.table(columns)


def first_host(sizes: np.ndarray, hosts: int) -> tuple[Order, set[int]]:
    """The order of a run on so many machines, and the lanes of the first one."""
    batch = 2 * hosts * BATCH
    lanes = lanes_for(int(sizes.sum()), [batch], machines=hosts)
    order = Order(sizes, FINGERPRINT, seed=0, lanes=lanes)
    return order, order.lanes_of(0, batch, 0, batch // hosts)


def write(folder: Path, images: int, hosts: int) -> None:
    began, seed = time.monotonic(), np.random.default_rng(0)
    count = images // SHARD_IMAGES
    sizes = np.full(count, SHARD_IMAGES, np.int64)
    wanted = range(count)
    if hosts > 1:
        order, lanes = first_host(sizes, hosts)
        plan, own = order.plan(0), set[int]()
        for lane in lanes:
            slots = np.searchsorted(
                plan.starts, plan.lane_starts[[lane, lane + 1]] - [0, 1], "right"
            )
            own |= set(plan.shards[slots[0] - 1 : slots[1]].tolist())
        wanted = sorted(own)
    # Rows that are not written have made-up hashes, so that the table has its real size.
    files = {number: RowsFile("", 77_000, sha256_json([number])) for number in range(count)}
    labels, written = np.zeros(CLASSES, np.int64), 0
    for number in wanted:
        table = rows_table(number, SHARD_IMAGES, seed)
        path = folder / "train" / rows_name(number)
        sha256 = write_table(path, table)
        files[number] = RowsFile(path.name, path.stat().st_size, sha256)
        written += files[number].bytes
    labels[:] = images // CLASSES
    size = SHARD_IMAGES * (IMAGE_BYTES * 3 // 2 + 2048)
    shards = [
        {"images": SHARD_IMAGES, "bytes": size, "sha256": sha256_json(number)}
        for number in range(count)
    ]
    table = write_shard_table(shards, [files[number] for number in range(count)])
    facts = {
        "images": images,
        "shard_count": count,
        "shard_bytes": size * count,
        "shards_sha256": write_table(folder / "train" / TABLE, table),
        "class_counts": labels.tolist(),
        "largest": [IMAGE_BYTES * 3 // 2, 500 * 500],
        "stored_bytes": images * IMAGE_BYTES,
        "even_side": 0,
    }
    description = {
        "format": FORMAT,
        "fingerprint": FINGERPRINT,
        "classes": [f"n{number:08d}" for number in range(CLASSES)],
        "storage": {"codec": "jpeg"},
        "splits": {"train": facts},
        "report": {},
        "rejected_sha256": "",
    }
    write_json(folder / "dataset.json", sealed(description))
    table_bytes = (folder / "train" / TABLE).stat().st_size
    print(
        f"{images:,} images in {count:,} shards: rows of {len(wanted):,} shards in "
        f"{written / 1e9:.2f} GB ({written / len(wanted) / SHARD_IMAGES:.1f} bytes an image), "
        f"table of shards {table_bytes / 1e6:.1f} MB, in {time.monotonic() - began:.0f} s"
    )


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def open_once(folder: Path, hosts: int) -> dict[str, float]:
    """Open the part of the first host, as training does."""
    before, began = peak_mb(), time.perf_counter()
    dataset = Dataset(folder)
    split = dataset.split("train")
    opened = time.perf_counter()
    order, lanes = first_host(split.shard_sizes, hosts)
    batch = 2 * hosts * BATCH
    order.look_ahead(0, batch, 0, batch // hosts)
    ordered = time.perf_counter()
    samples = np.concatenate(
        [order.samples_at(lane + order.lanes * np.arange(WINDOW)) for lane in lanes]
    )
    split.rows.prepare(samples)
    labels, lengths = split.labels[samples], split.length[samples]
    done = time.perf_counter()
    assert len(labels) == len(lengths) == len(lanes) * WINDOW
    return {
        "open_s": opened - began,
        "order_s": ordered - opened,
        "rows_s": done - ordered,
        "in_all_s": done - began,
        "peak_mb": peak_mb(),
        "libraries_mb": before,
        "lanes": len(lanes),
        "rows": len(samples),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("write", "open", "open-once"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=float, default=1e6)
    parser.add_argument("--hosts", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.what == "write":
        write(arguments.folder, int(arguments.images), arguments.hosts)
    elif arguments.what == "open-once":
        print(json.dumps(open_once(arguments.folder, arguments.hosts)))
    else:
        command = [sys.executable, __file__, "open-once", str(arguments.folder)]
        for _ in range(3):
            subprocess.run([*command, "--hosts", str(arguments.hosts)], check=True)


if __name__ == "__main__":
    main()
