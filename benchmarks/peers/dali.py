"""DALI on the CPU: its own reader, decoder of random crops, and resizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types

from peers.protocol import Job, counted, serve


@pipeline_def  # type: ignore[misc]
def pixels(job: Job) -> Any:
    data, _ = fn.readers.file(
        file_root=job.files, random_shuffle=job.training, initial_fill=1000, name="reader"
    )
    linear = {"interp_type": types.INTERP_LINEAR, "antialias": False}
    if not job.training:
        images = fn.decoders.image(data, device="cpu", output_type=types.RGB)
        return fn.resize_crop_mirror(
            images,
            resize_shorter=round(job.size / 0.875),
            crop=(job.size, job.size),
            **linear,
        )
    images = fn.decoders.image_random_crop(
        data,
        device="cpu",
        output_type=types.RGB,
        random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
        num_attempts=10,
    )
    images = fn.resize(images, resize_x=job.size, resize_y=job.size, **linear)
    return fn.flip(images, horizontal=fn.random.coin_flip())


def prepare(job: Job) -> Callable[[], int]:
    # Note: a pipeline never ends; it works two batches ahead, into its next epoch.
    pipeline = pixels(job, batch_size=job.batch, num_threads=job.cores, device_id=None)
    pipeline.build()
    batches = len(job.stored()) // job.batch

    def epoch() -> int:
        made = (np.asarray(pipeline.run()[0].as_tensor()) for _ in range(batches))
        return sum(counted(images, job) for images in made)

    return epoch


if __name__ == "__main__":
    serve(prepare)
