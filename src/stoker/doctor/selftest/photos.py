"""A small packed set of pictures that cost as much to decode as photographs.

Invariant: the same numbers give the same bytes. Each class has a colour of its own, so that a model
can learn them.
"""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stoker.data.images.encode import Storage
from stoker.data.images.jpeg import encode_jpeg
from stoker.data.packing.pack import pack

CLASSES = 4
VALIDATION = 8
"""One picture in so many is for validation."""
QUALITY = 90


def picture(label: int, number: int, side: int) -> NDArray[np.uint8]:
    """Large shapes, edges and fine grain, in the proportions of a photograph."""
    draw = np.random.default_rng([label, number])
    size = (side, side * 3 // 4)
    pixels = np.zeros((size[1], size[0], 3), np.float32)
    for cells, contrast in ((4, 60.0), (24, 30.0), (96, 12.0)):
        grid = draw.normal(0, contrast, (cells * 3 // 4, cells, 3)).astype(np.float32)
        pixels += cv2.resize(grid, size, interpolation=cv2.INTER_CUBIC)
    pixels += draw.normal(0, 4, pixels.shape).astype(np.float32)
    pixels[..., label % 3] += 40 if label < 3 else -40
    return np.clip(pixels + 120, 0, 255).astype(np.uint8)


def pack_photos(folder: Path, count: int, side: int) -> Path:
    """Make pictures and pack them; returns the packed set."""
    for number in range(count):
        label, split = number % CLASSES, "train" if number // CLASSES % VALIDATION else "val"
        place = folder / split / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        data = encode_jpeg(picture(label, number, side), QUALITY)
        (place / f"{number:05d}.jpg").write_bytes(data)
    packed = folder.with_name(f"{folder.name}-packed")
    return pack(folder, packed, storage=Storage(max_side=side), val_share=0, workers=1)
