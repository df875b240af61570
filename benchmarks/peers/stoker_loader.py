"""`stoker.Loader`, run as a peer: normalised float tensors, as torchvision's default gives them."""

from __future__ import annotations

from collections.abc import Callable

import stoker
from peers.protocol import Job, counted, serve


def prepare(job: Job) -> Callable[[], int]:
    loader = stoker.Loader(
        job.packed,
        "train",
        job.batch,
        job.size,
        train=job.training,
        crop_scale=0.08,
        threads=job.cores,
    )

    def epoch() -> int:
        return sum(counted(images, job, "float32") for images, _ in loader)

    return epoch


if __name__ == "__main__":
    serve(prepare)
