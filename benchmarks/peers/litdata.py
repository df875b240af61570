"""LitData: optimised chunks of bytes, its own loader, simplejpeg and OpenCV for the pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import litdata

from peers.pixels import render
from peers.protocol import Job, counted, serve


def sample_of(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:  # noqa: PTH123
        return {"jpeg": file.read()}


class Decoded(litdata.StreamingDataset):  # type: ignore[misc]
    def __init__(self, job: Job) -> None:
        super().__init__(job.place, shuffle=job.training, drop_last=job.training)
        self.job = job

    def __getitem__(self, index: Any) -> Any:
        return render(super().__getitem__(index)["jpeg"], self.job.size, self.job.training)


def prepare(job: Job) -> Callable[[], int]:
    # Note: each worker gets whole chunks, so there must be many more chunks than workers.
    litdata.optimize(
        fn=sample_of,
        inputs=[str(path) for path in job.stored()],
        output_dir=job.place,
        chunk_size=max(1, len(job.stored()) // (8 * job.cores)),
        num_workers=job.cores,
    )
    loader = litdata.StreamingDataLoader(
        Decoded(job), batch_size=job.batch, num_workers=job.cores, persistent_workers=True
    )
    return lambda: sum(counted(batch, job) for batch in loader)


if __name__ == "__main__":
    serve(prepare)
