"""What augmentation costs: CPU microseconds for an image, beside showing its crop.

    python benchmarks/augment.py

The images are noise over a gradient, stored as JPEG (500 x 400, shown at 224 px) and as raw pixels
(32 px). The least of several passes counts, in CPU time of one thread, so that other programs
disturb it little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import cv2
import numpy as np
import simplejpeg

from stoker.data.loading.augment import Augmentation, augment, draw
from stoker.data.loading.render import RENDERERS

IMAGES, PASSES = 64, 9
CASES = {
    "auto_augment = trivial": Augmentation("trivial"),
    "auto_augment = rand (2 operations, 9)": Augmentation("rand"),
    "color_jitter = 0.4": Augmentation(color_jitter=0.4),
    "random_erasing = 0.25": Augmentation(random_erasing=0.25),
}


def least_us(work: Callable[[int], object]) -> float:
    """CPU microseconds of the quickest pass, for each image."""
    seconds = []
    for number in range(PASSES):
        began = time.thread_time()
        work(number)
        seconds.append(time.thread_time() - began)
    return min(seconds) / IMAGES * 1e6


def show_us(codec: str, width: int, height: int, side: int) -> float:
    """CPU microseconds of decoding, cropping and resizing an image."""
    down, across = np.mgrid[0:height, 0:width]
    noise = np.random.default_rng(0).normal(0, 20, (height, width, 3))
    picture = np.clip(noise + np.stack([across / 2, down / 2, across / 3], -1), 0, 255)
    data = picture.astype(np.uint8).tobytes()
    if codec == "jpeg":
        data = simplejpeg.encode_jpeg(picture.astype(np.uint8), 90, colorsubsampling="420")
    out, render = np.empty((side, side, 3), np.uint8), RENDERERS[codec]
    box = [width // 10, height // 10, width - width // 10, height - height // 10]
    box = [0, 0, width, height] if codec == "raw" else box

    def work(number: int) -> None:
        for _ in range(IMAGES):
            render(memoryview(data), width, height, box, True, out)

    return least_us(work)


def main() -> None:
    cv2.setNumThreads(0)
    samples, epochs = np.arange(IMAGES), np.zeros(IMAGES, np.int64)
    sizes = {224: ("jpeg", 500, 400), 32: ("raw", 32, 32)}
    print(f"| CPU microseconds an image | {' | '.join(f'{side} px' for side in sizes)} |")
    print("|---|---|---|")
    shown = [show_us(*stored, side) for side, stored in sizes.items()]
    print(f"| decode, crop, resize | {' | '.join(f'{us:.0f}' for us in shown)} |")
    for name, how in CASES.items():
        row = []
        for side in sizes:
            shape = (IMAGES, side, side, 3)
            images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
            us = least_us(lambda n, i=images, h=how: augment(h, n, samples, epochs, i))  # type: ignore[misc]
            drawing = least_us(lambda n, s=side, h=how: draw(h, n, s, samples, epochs))  # type: ignore[misc]
            row.append(f"{us:.0f}, drawing {drawing:.0f}")
        print(f"| `{name}` | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
