"""Our loader, run as a peer."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from peers.protocol import Job, counted, serve
from stoker.data.dataset import Dataset
from stoker.data.loading.crops import View
from stoker.data.loading.loader import BatchLoader
from stoker.data.loading.order import InOrder, Order
from stoker.recipe.schedule import Batch


def view_of(codec: str, training: bool) -> View:
    if codec == "raw":
        return View(crop="pad", crop_pct=1.0, hflip=True)
    if training:
        return View(crop="resized", crop_scale=0.08, hflip=True)
    return View(crop="centre", crop_pct=0.875)


def prepare(job: Job) -> Callable[[], int]:
    split = Dataset(job.packed).split("train")
    order = Order(split.shard_sizes, "benchmark", seed=0) if job.training else InOrder()
    loader = BatchLoader(split, order, view_of(split.codec, job.training), threads=job.cores)
    batches = len(split) // job.batch
    numbers = count()

    def epoch() -> int:
        # Note: a plan may be endless; one that ends makes no batch ahead of the next epoch.
        first = next(numbers) * batches if job.training else 0
        plan = [
            Batch(step, step * job.batch, job.batch, job.size)
            for step in range(first, first + batches)
        ]
        return sum(counted(loaded.images, job) for loaded in loader.batches(plan))

    return epoch


if __name__ == "__main__":
    serve(prepare)
