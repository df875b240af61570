"""Which part of an image is shown: crop boxes for a whole batch at once.

Invariants: a box is a function of (seed, epoch, sample) and the stored size. Only +, -, *, / and
square roots are used, so results are the same to the last bit on every machine. Boxes are in pixels
of the stored image. With crop = pad they may reach outside it, where the image is mirrored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker import chance
from stoker.data.loading.augment import NONE, Augmentation

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TRIES = 10


@dataclass(frozen=True)
class View:
    """How images are cropped, mirrored and augmented, in training, evaluation and prediction."""

    crop: str = "centre"
    crop_scale: float = 0.25
    crop_pad: int = 4
    crop_pct: float = 0.875
    hflip: bool = False
    seed: int = 0
    augmentation: Augmentation = NONE


@dataclass(frozen=True)
class Boxes:
    """Left, top, right and bottom edge of each sample's box, and whether it is mirrored."""

    edges: Ints
    flip: NDArray[np.bool_]


def boxes(
    view: View, image_size: int, samples: Ints, epochs: Ints, widths: Ints, heights: Ints
) -> Boxes:
    wide, high = widths.astype(np.float64), heights.astype(np.float64)
    if view.crop == "resized":
        edges = resized_boxes(view, samples, epochs, wide, high)
    else:
        edges = centre_boxes(view.crop_pct, wide, high)
        if view.crop == "pad":
            edges = edges + shifts(view, image_size, samples, epochs, edges)
    flip = np.zeros(len(samples), dtype=np.bool_)
    if view.hflip:
        flip = chance.draws(view.seed, samples, epochs, "flip")[:, 0] < 0.5
    return Boxes(edges.astype(np.int64), flip)


def centre_boxes(side_share: float, wide: Floats, high: Floats) -> Ints:
    """Centred squares whose side is a share of the shorter side."""
    side = np.maximum(np.floor(np.minimum(wide, high) * side_share + 0.5), 1)
    left, top = np.floor((wide - side) / 2), np.floor((high - side) / 2)
    return np.stack([left, top, left + side, top + side], axis=1).astype(np.int64)


def shifts(view: View, image_size: int, samples: Ints, epochs: Ints, edges: Ints) -> Ints:
    """A random shift of up to `crop_pad` pixels of the model's input, in stored pixels."""
    side = (edges[:, 2] - edges[:, 0]).astype(np.float64)
    limit = np.floor(np.minimum(view.crop_pad * side / image_size, side - 1) + 0.5)[:, None]
    draws = chance.draws(view.seed, samples, epochs, "shift", 2)
    offsets = np.floor(draws * (2 * limit + 1)) - limit
    return np.tile(offsets.astype(np.int64), (1, 2))


def resized_boxes(view: View, samples: Ints, epochs: Ints, wide: Floats, high: Floats) -> Ints:
    """Boxes of random area and aspect ratio: the first of TRIES draws that fits into the image, or
    the largest centred square where none does."""
    area = chance.draws(view.seed, samples, epochs, "area", TRIES)
    area = area * (1 - view.crop_scale) + view.crop_scale
    ratio = power_of_four_thirds(2 * chance.draws(view.seed, samples, epochs, "aspect", TRIES) - 1)
    pixels = (wide * high)[:, None] * area
    across = np.floor(np.sqrt(pixels * ratio) + 0.5)
    down = np.floor(np.sqrt(pixels / ratio) + 0.5)
    fits: NDArray[np.bool_] = (
        (across <= wide[:, None]) & (down <= high[:, None]) & (across >= 1) & (down >= 1)
    )
    first = fits.argmax(axis=1).reshape(-1, 1)
    across = np.take_along_axis(across, first, 1)[:, 0]
    down = np.take_along_axis(down, first, 1)[:, 0]
    corner = chance.draws(view.seed, samples, epochs, "place", 2)
    left = np.floor(corner[:, 0] * (wide - across + 1))
    top = np.floor(corner[:, 1] * (high - down + 1))
    edges = np.stack([left, top, left + across, top + down], axis=1).astype(np.int64)
    return np.where(fits.any(axis=1, keepdims=True), edges, centre_boxes(1.0, wide, high))


def power_of_four_thirds(exponent: Floats) -> Floats:
    """(4/3) ** exponent for -1 <= exponent <= 1, by its series: exp() differs between libraries."""
    x = exponent * 0.28768207245178085  # ln(4/3)
    total = np.ones_like(x)
    for degree in range(12, 0, -1):
        total = 1 + total * x / degree
    return total


def dct_scale(across: int, down: int, image_size: int) -> int:
    """The largest power of two, at most 8, that leaves both sides of a box `image_size` pixels."""
    return min(8, 1 << int(math.log2(max(min(across, down) // image_size, 1))))
