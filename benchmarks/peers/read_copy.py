"""The floor of loading raw pixels that are not in memory: shards are read, images copied from them
into a batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from peers.protocol import Job, serve
from stoker.data.dataset import Dataset


def prepare(job: Job) -> Callable[[], int]:
    # Note: the order is random within a shard alone, and nothing is shifted or mirrored.
    split = Dataset(job.packed).split("train")
    firsts = np.concatenate(([0], np.cumsum(split.shard_sizes)))
    image_bytes = job.size * job.size * 3
    pool, own = ThreadPoolExecutor(job.cores), threading.local()

    def read_and_copy(shard: int) -> int:
        if not hasattr(own, "batch"):
            own.memory = None
            own.batch = np.empty((job.batch, job.size, job.size, 3), np.uint8)
        own.memory = split.whole_shard(shard, own.memory)
        samples = np.arange(firsts[shard], firsts[shard + 1])
        first = int(split.offset[samples[0]] + split.length[samples[0]]) - image_bytes
        pitch = int(np.diff(split.offset[samples[:2]])[0])
        shape, strides = (len(samples), job.size, job.size, 3), (pitch, job.size * 3, 3, 1)
        images = np.ndarray(shape, np.uint8, own.memory, first, strides)
        order = np.random.default_rng(shard).permutation(len(samples))
        for begin in range(0, len(order), job.batch):
            chosen = order[begin : begin + job.batch]
            own.batch[: len(chosen)] = images[chosen]
        return len(samples)

    return lambda: sum(pool.map(read_and_copy, range(len(split.shards))))


if __name__ == "__main__":
    serve(prepare)
