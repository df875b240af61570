"""The limit of a Python loader with these codecs: threads, simplejpeg, cv2, bytes in memory."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import simplejpeg

from peers.pixels import render
from peers.protocol import Job, serve

CHUNK = 25


def prepare(job: Job) -> Callable[[], int]:
    stored = [path.read_bytes() for path in job.stored()]
    shapes = [simplejpeg.decode_jpeg_header(data)[:2] for data in stored]
    largest = max(height * width * 3 for height, width in shapes)
    buffers = np.empty((2, job.batch, job.size, job.size, 3), np.uint8)
    pool = ThreadPoolExecutor(job.cores)
    own = threading.local()

    def fill(numbers: list[int], places: np.ndarray) -> None:
        if not hasattr(own, "buffer"):
            own.buffer = bytearray(largest)
        for number, place in zip(numbers, places, strict=True):
            render(stored[number], job.size, job.training, shapes[number], place, own.buffer)

    def begin(order: list[int], turn: int) -> list[Future[None]]:
        return [
            pool.submit(fill, order[at : at + CHUNK], buffers[turn % 2][at : at + CHUNK])
            for at in range(0, len(order), CHUNK)
        ]

    def epoch() -> int:
        order = list(range(len(stored)))
        if job.training:
            random.shuffle(order)
        batches = [order[at : at + job.batch] for at in range(0, len(order), job.batch)]
        making: list[list[Future[None]]] = []
        for turn, batch in enumerate(batches):
            # Note: the next batch begins, in the other buffer, before this one is awaited.
            making.append(begin(batch, turn))
            if turn:
                [future.result() for future in making[turn - 1]]
        [future.result() for future in making[-1]]
        return len(order)

    return epoch


if __name__ == "__main__":
    serve(prepare)
