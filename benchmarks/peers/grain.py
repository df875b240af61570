"""Grain: ArrayRecord files read and decoded by threads of one process, simplejpeg and OpenCV."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import grain
from array_record.python.array_record_module import ArrayRecordWriter

from peers.pixels import render
from peers.protocol import Job, counted, serve


def prepare(job: Job) -> Callable[[], int]:
    path = f"{job.place}/images.array_record"
    # Note: without group_size:1 a random read decompresses a whole group of records.
    writer = ArrayRecordWriter(path, "group_size:1,uncompressed")
    for stored in job.stored():
        writer.write(stored.read_bytes())
    writer.close()
    source = grain.sources.ArrayRecordDataSource([path])
    reading = grain.ReadOptions(num_threads=job.cores, prefetch_buffer_size=2 * job.batch)
    seeds = iter(range(1 << 30))

    def epoch() -> int:
        dataset = grain.MapDataset.source(source)
        if job.training:
            dataset = dataset.shuffle(seed=next(seeds))
        dataset = dataset.map(partial(render, size=job.size, training=job.training))
        batches = dataset.to_iter_dataset(reading).batch(job.batch, drop_remainder=job.training)
        return sum(counted(batch, job) for batch in batches)

    return epoch


if __name__ == "__main__":
    serve(prepare)
