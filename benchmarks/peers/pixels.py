"""One image from JPEG bytes by simplejpeg and OpenCV, for peers without their own decoder.

The steps are those of our loader: shrink by a power of two while decoding if the crop allows it,
cut, resize bilinearly, mirror.
"""

from __future__ import annotations

import math
import random
from typing import Any

import cv2
import numpy as np
import simplejpeg

cv2.setNumThreads(0)
RATIOS = (math.log(3 / 4), math.log(4 / 3))


def training_box(width: int, height: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop's box: left, top, width, height."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(*RATIOS))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, top = random.randint(0, width - across), random.randint(0, height - down)
            return left, top, across, down
    return centre_box(width, height, 1)


def centre_box(width: int, height: int, share: float) -> tuple[int, int, int, int]:
    side = round(min(width, height) * share)
    return (width - side) // 2, (height - side) // 2, side, side


def render(
    data: Any,
    size: int,
    training: bool,
    shape: tuple[int, int] | None = None,
    out: Any = None,
    buffer: Any = None,
) -> Any:
    """One image of a batch, height x width x 3, written into `out` if there is one."""
    height, width = shape or simplejpeg.decode_jpeg_header(data)[:2]
    box = training_box(width, height) if training else centre_box(width, height, 0.875)
    scale = min(8, 1 << int(math.log2(max(min(box[2:]) // size, 1))))
    least = (-(-height // scale), -(-width // scale)) if scale > 1 else (0, 0)
    image = simplejpeg.decode_jpeg(
        data, min_height=least[0], min_width=least[1], min_factor=scale, buffer=buffer
    )
    left, top, across, down = (edge // scale for edge in box)
    out = np.empty((size, size, 3), np.uint8) if out is None else out
    cv2.resize(image[top : top + down, left : left + across], (size, size), dst=out)
    if training and random.random() < 0.5:
        cv2.flip(out, 1, dst=out)
    return out
