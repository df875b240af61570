"""Augmentation of the cropped and mirrored images of a chunk: operations, jitter, erasing.

Invariants: what is done to an image is a function of (seed, epoch, sample) and the image size: not
of threads, chunks, ranks or the codec. It is drawn for a whole chunk at once, as whole numbers, and
then done image by image, in place, on bytes (`pixel_ops`), whichever code has shown the crop.

    auto_augment (trivial or rand) -> color_jitter -> random_erasing

TrivialAugment (wide) does one operation of random strength, RandAugment some of the same strength.
Their operations and strengths are torchvision's, of 31 bins; `move` of TrivialAugment is in pixels
of the model's input, that of RandAugment is a share of its side.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker import chance
from stoker.data.images.pixel_ops import OPERATIONS, UNIT, Pixels

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Strength = tuple[str, int]
"""The name of an operation and its strength, in the operation's own unit."""
Erased = tuple[int, int, int, int, int]
"""Left, top, right and bottom edge of a box, and its colour as 0xRRGGBB."""

BINS = 31
NAMES = tuple(OPERATIONS)
JITTER = ("brightness", "contrast", "saturation")
ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))
TRIES = 10
LEAST_AREA, MOST_AREA = 0.02, 1 / 3
LOG_ASPECT = 1.2039728043259361
"""ln(1 / 0.3): an erased box is at most 3.3 times as wide as high, or as high as wide."""


@dataclass(frozen=True)
class Augmentation:
    """What is done to training images after the crop; nothing by default."""

    auto: str = "off"
    rand_ops: int = 2
    rand_magnitude: int = 9
    color_jitter: float = 0.0
    random_erasing: float = 0.0

    @property
    def changes_pixels(self) -> bool:
        return self.auto != "off" or self.color_jitter > 0 or self.random_erasing > 0


NONE = Augmentation()


@dataclass(frozen=True)
class Drawn:
    """What is done to one image."""

    operations: tuple[Strength, ...] = ()
    erased: Erased | None = None

    def texts(self) -> list[str]:
        """What is done, a phrase for each operation."""
        texts = [phrase(*operation) for operation in self.operations if has_effect(*operation)]
        if self.erased:
            left, top, right, bottom, _ = self.erased
            texts.append(f"erased {right - left} x {bottom - top}")
        return texts


@dataclass(frozen=True)
class Range:
    """The largest strength of each kind of operation."""

    shear: float
    move: Callable[[int], float]
    """In pixels, for images of this side."""
    degrees: float
    factor: float
    bits: int
    """Of 8, those that posterizing removes."""


RANGES = {
    "trivial": Range(0.99, lambda side: 32, 135, 0.99, 6),
    "rand": Range(0.3, lambda side: 150 / 331 * side, 30, 0.9, 4),
}


def strength_of(name: str, largest: Range, number: int, sign: int, side: int) -> int:
    """The strength of an operation in its own unit, for a bin from 0 to BINS - 1."""
    share = number / (BINS - 1)
    if name.startswith("shear"):
        return sign * rounded(UNIT * largest.shear * share)
    if name.startswith("move"):
        return sign * int(largest.move(side) * share)
    if name == "rotate":
        return sign * rounded(UNIT * largest.degrees * share)
    if name == "posterize":
        return 8 - rounded(largest.bits * share)
    if name == "solarize":
        return -(-255 * (BINS - 1 - number) // (BINS - 1))
    if name in ("brightness", "saturation", "contrast", "sharpness"):
        return rounded(UNIT * (1 + sign * largest.factor * share))
    return 0


def rounded(number: float) -> int:
    """The nearest whole number; the lower one from the middle."""
    return math.ceil(number - 0.5)


def has_effect(name: str, strength: int) -> bool:
    """Whether an operation of this strength can change an image."""
    return name != "identity" and (
        strength != 0 or not name.startswith(("move", "shear", "rotate"))
    )


def phrase(name: str, strength: int) -> str:
    """An operation with its strength, for a person."""
    if name == "rotate":
        return f"{name} {strength / UNIT:+.0f} deg"
    if name.startswith("move"):
        return f"{name} {strength:+d} px"
    if name.startswith("shear"):
        return f"{name} {strength / UNIT:+.2f}"
    if name == "posterize":
        return f"{name} {strength} bits"
    if name == "solarize":
        return f"{name} from {strength}"
    factored = name in ("brightness", "saturation", "contrast", "sharpness")
    return f"{name} x {strength / UNIT:.2f}" if factored else name


def draw(
    augmentation: Augmentation, seed: int, image_size: int, samples: Ints, epochs: Ints
) -> list[Drawn]:
    """What is done to each of some samples in their epochs."""
    operations: list[list[Strength]] = [[] for _ in range(len(samples))]
    if augmentation.auto != "off":
        draw_operations(augmentation, seed, image_size, samples, epochs, operations)
    if augmentation.color_jitter:
        draw_jitter(augmentation.color_jitter, seed, samples, epochs, operations)
    boxes: list[Erased | None] = [None] * len(samples)
    if augmentation.random_erasing:
        boxes = draw_erased(augmentation.random_erasing, seed, image_size, samples, epochs)
    return [Drawn(tuple(some), box) for some, box in zip(operations, boxes, strict=True)]


def draw_operations(
    augmentation: Augmentation,
    seed: int,
    image_size: int,
    samples: Ints,
    epochs: Ints,
    operations: list[list[Strength]],
) -> None:
    """Add the operations of TrivialAugment or RandAugment."""
    largest, trivial = RANGES[augmentation.auto], augmentation.auto == "trivial"
    rounds = 1 if trivial else augmentation.rand_ops
    draws = chance.draws(seed, samples, epochs, "auto augment", 3 * rounds)
    for some, row in zip(operations, draws.tolist(), strict=True):
        for at in range(0, 3 * rounds, 3):
            name, sign = NAMES[int(row[at] * len(NAMES))], 1 if row[at + 1] < 0.5 else -1
            number = int(row[at + 2] * BINS) if trivial else augmentation.rand_magnitude
            some.append((name, strength_of(name, largest, number, sign, image_size)))


def draw_jitter(
    most: float, seed: int, samples: Ints, epochs: Ints, operations: list[list[Strength]]
) -> None:
    """Add factors between 1 - most and 1 + most, in random order."""
    for some, row in zip(
        operations, chance.draws(seed, samples, epochs, "color jitter", 4).tolist(), strict=True
    ):
        for which in ORDERS[int(row[3] * len(ORDERS))]:
            some.append((JITTER[which], rounded(UNIT * (1 + most * (2 * row[which] - 1)))))


def draw_erased(
    share: float, seed: int, image_size: int, samples: Ints, epochs: Ints
) -> list[Erased | None]:
    """The boxes to erase, in this share of the images: of random area, aspect ratio and place, the
    first of TRIES draws that fits."""
    draws = chance.draws(seed, samples, epochs, "erase", 4 + 2 * TRIES)
    area = LEAST_AREA + (MOST_AREA - LEAST_AREA) * draws[:, 4 : 4 + TRIES]
    ratio = exponential(LOG_ASPECT * (2 * draws[:, 4 + TRIES :] - 1))
    across = np.floor(image_size * np.sqrt(area * ratio) + 0.5)
    down = np.floor(image_size * np.sqrt(area / ratio) + 0.5)
    fits: NDArray[np.bool_] = (across < image_size) & (down < image_size)
    fits &= (across > 0) & (down > 0)
    chosen = fits.argmax(axis=1).reshape(-1, 1)
    across = np.take_along_axis(across, chosen, 1)[:, 0]
    down = np.take_along_axis(down, chosen, 1)[:, 0]
    left = np.floor(draws[:, 1] * (image_size - across + 1))
    top = np.floor(draws[:, 2] * (image_size - down + 1))
    colour = np.floor(draws[:, 3] * (1 << 24))
    edges = np.stack([left, top, left + across, top + down, colour], axis=1).astype(np.int64)
    erases = (draws[:, 0] < share) & fits.any(axis=1)
    rows = zip(edges.tolist(), erases.tolist(), strict=True)
    return [(row[0], row[1], row[2], row[3], row[4]) if erased else None for row, erased in rows]


def exponential(x: Floats) -> Floats:
    """e ** x for |x| up to 1.3, by its series: exp() differs between libraries."""
    total = np.ones_like(x)
    for degree in range(20, 0, -1):
        total = 1 + total * x / degree
    return total


def apply(drawn: Drawn, image: Pixels) -> None:
    """Do to one image what was drawn for it."""
    for name, strength in drawn.operations:
        OPERATIONS[name](image, strength)
    if drawn.erased is not None:
        left, top, right, bottom, colour = drawn.erased
        image[top:bottom, left:right] = (colour >> 16, colour >> 8 & 0xFF, colour & 0xFF)


def augment(
    augmentation: Augmentation, seed: int, samples: Ints, epochs: Ints, images: Pixels
) -> None:
    """Augment the images of some samples in their epochs, in place."""
    side = images.shape[1]
    for drawn, image in zip(draw(augmentation, seed, side, samples, epochs), images, strict=True):
        apply(drawn, image)
