"""MosaicML Streaming: MDS shards of bytes, simplejpeg and OpenCV for the pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from peers.pixels import render
from peers.protocol import Job, counted, serve


class Decoded(StreamingDataset):  # type: ignore[misc]
    def __init__(self, job: Job) -> None:
        # Note: it needs the batch size too, to distribute samples over workers.
        super().__init__(local=job.place, shuffle=job.training, batch_size=job.batch)
        self.job = job

    def __getitem__(self, at: Any) -> Any:
        return render(super().__getitem__(at)["jpeg"], self.job.size, self.job.training)


def prepare(job: Job) -> Callable[[], int]:
    with MDSWriter(out=job.place, columns={"jpeg": "bytes"}, exist_ok=True) as writer:
        for path in job.stored():
            writer.write({"jpeg": path.read_bytes()})
    loader = StreamingDataLoader(
        Decoded(job), batch_size=job.batch, num_workers=job.cores, persistent_workers=True
    )
    return lambda: sum(counted(batch, job) for batch in loader)


if __name__ == "__main__":
    serve(prepare)
