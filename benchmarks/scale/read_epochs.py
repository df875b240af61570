"""Reads epochs of a set as one host: read_epochs.py SET HOST HOSTS BATCH BATCHES THREADS.

Prints a line of JSON: seconds from opening the set to the first batch, shards fetched whole and
images read alone. BATCHES: the epochs end early after so many; 0: two whole epochs.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import islice

import torch

import stoker

EPOCHS = 2


def main() -> None:
    data, host, hosts, batch, batches, threads = sys.argv[1], *map(int, sys.argv[2:7])
    torch.zeros(1)  # what torch does once is not part of the time
    began, first_s = time.perf_counter(), 0.0
    with stoker.Loader(
        data,
        batch_size=batch,
        image_size=16,
        dtype="uint8",
        rank=host,
        world_size=hosts,
        threads=threads,
    ) as loader:
        for _ in range(1 if batches else EPOCHS):
            for _ in islice(loader, batches or None):
                first_s = first_s or time.perf_counter() - began
        source = loader._index.source
        counts = [getattr(source, name) for name in ("fetched", "ranges")]
    print(json.dumps({"first_s": first_s, "counts": counts}))


if __name__ == "__main__":
    main()
