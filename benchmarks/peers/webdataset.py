"""WebDataset: tar shards, batches made in the workers, simplejpeg and OpenCV for the pixels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import webdataset as wds
from torch.utils.data import default_collate

from peers.pixels import render
from peers.protocol import Job, counted, serve


def prepare(job: Job) -> Callable[[], int]:
    # Note: each worker gets whole shards, so their number must be a multiple of the workers.
    shards = 4 * job.cores
    stored = job.stored()
    with wds.ShardWriter(f"{job.place}/%05d.tar", maxcount=-(-len(stored) // shards)) as writer:
        for number, path in enumerate(stored):
            writer.write({"__key__": f"{number:06d}", "jpg": path.read_bytes()})
    urls = sorted(str(path) for path in Path(job.place).glob("*.tar"))
    dataset = wds.WebDataset(urls, shardshuffle=shards if job.training else False)
    if job.training:
        dataset = dataset.shuffle(1000)
    dataset = (
        dataset.to_tuple("jpg")
        .map_tuple(partial(render, size=job.size, training=job.training))
        .batched(job.batch, collation_fn=default_collate)
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=job.cores, persistent_workers=True)
    return lambda: sum(counted(batch[0], job) for batch in loader)


if __name__ == "__main__":
    serve(prepare)
