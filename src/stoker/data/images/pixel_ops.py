"""The operations of augmentation, each on one image of bytes, in place.

Invariants: factors are multiples of 1/256, so that products with bytes are exact in 32-bit floats:
whatever instructions a machine has, the bytes are the same. The exception is `warp`, which shears
and rotates: there OpenCV's `warpAffine` decides. What an operation uncovers gets the colour FILL.
OpenCV releases the interpreter lock while it works on pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Operation = Callable[[Pixels, int], None]
"""(image, strength), where the strength is a whole number in the unit of the operation."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
FILL = (124, 116, 104)
"""ImageNet's mean in bytes: close to zero in the input of most models."""
UNIT = 256
"""The factor 1 of brightness, contrast, saturation and sharpness, and a shear of 1."""
SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / np.float32(13)
"""Pillow's SMOOTH. A multiple of 1/13 is never halfway between two bytes, so rounding is exact."""
LEVELS = np.arange(256)


@lru_cache(1024)
def brightness_table(factor: int) -> Pixels:
    return np.minimum((LEVELS * factor + UNIT // 2) // UNIT, 255).astype(np.uint8)


@lru_cache(16)
def posterize_table(bits: int) -> Pixels:
    return (LEVELS & (0xFF << (8 - bits) & 0xFF)).astype(np.uint8)


@lru_cache(256)
def solarize_table(threshold: int) -> Pixels:
    return np.where(threshold <= LEVELS, 255 - LEVELS, LEVELS).astype(np.uint8)


def brightness(image: Pixels, factor: int) -> None:
    cv2.LUT(image, brightness_table(factor), dst=image)


def contrast(image: Pixels, factor: int) -> None:
    """Move levels away from the mean grey level of the image."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    mean = math.floor(cv2.sumElems(grey)[0] / grey.size + 0.5)
    share = factor / UNIT
    cv2.addWeighted(image, share, image, 0, mean * (1 - share), dst=image)


def saturation(image: Pixels, factor: int) -> None:
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    share = factor / UNIT
    cv2.addWeighted(image, share, grey, 1 - share, 0, dst=image)


def sharpness(image: Pixels, factor: int) -> None:
    """Move pixels away from the smoothed image; those at the edge stay."""
    if min(image.shape[:2]) < 3:
        return
    inside = (slice(1, -1), slice(1, -1))
    smooth = image.copy()
    smooth[inside] = cv2.filter2D(image, -1, SMOOTH)[inside]
    share = factor / UNIT
    cv2.addWeighted(image, share, smooth, 1 - share, 0, dst=image)


def posterize(image: Pixels, bits: int) -> None:
    cv2.LUT(image, posterize_table(bits), dst=image)


def solarize(image: Pixels, threshold: int) -> None:
    cv2.LUT(image, solarize_table(threshold), dst=image)


def autocontrast(image: Pixels, _: int) -> None:
    """Stretch each colour to all levels."""
    tables = np.tile(LEVELS, (3, 1))
    lowest, highest = image.min(axis=0).min(axis=0), image.max(axis=0).max(axis=0)
    for table, low, high in zip(tables, lowest.tolist(), highest.tolist(), strict=True):
        if low < high:
            table[:] = np.clip((LEVELS - low) * 255 // (high - low), 0, 255)
    apply_tables(image, tables)


def equalize(image: Pixels, _: int) -> None:
    """Make all levels of a colour equally frequent, as Pillow does."""
    tables = np.tile(LEVELS, (3, 1))
    for colour, table in enumerate(tables):
        counts = cv2.calcHist([image], [colour], None, [256], [0, 256]).ravel().astype(np.int64)
        step = (image.shape[0] * image.shape[1] - int(counts[np.flatnonzero(counts)[-1]])) // 255
        if step:
            before = np.cumsum(counts) - counts
            table[:] = np.clip((before + step // 2) // step, 0, 255)
    apply_tables(image, tables)


def apply_tables(image: Pixels, tables: NDArray[np.int64]) -> None:
    """Apply a table to each colour."""
    table = np.ascontiguousarray(tables.T.reshape(256, 1, 3), np.uint8)
    cv2.LUT(image, table, dst=image)


def move(image: Pixels, right: int, down: int) -> None:
    """Move the image by some pixels."""
    height, width = image.shape[:2]
    moved = np.empty_like(image)
    moved[...] = FILL
    kept = image[max(-down, 0) : max(height - down, 0), max(-right, 0) : max(width - right, 0)]
    moved[max(down, 0) : max(height + down, 0), max(right, 0) : max(width + right, 0)] = kept
    image[...] = moved


@lru_cache(1024)
def shear_matrix(strength: int, axis: int) -> NDArray[np.float64]:
    """From a pixel of the result to its place in the image, with the corner as the origin."""
    share = strength / UNIT
    matrix = np.array([[1.0, 0, 0], [0, 1.0, 0]])
    matrix[axis, 1 - axis], matrix[axis, 2] = share, share / 2
    return matrix


@lru_cache(1024)
def rotation_matrix(strength: int, side: int) -> NDArray[np.float64]:
    """From a pixel of the result to its place in the image; the strength is in degrees / UNIT."""
    angle, middle = math.radians(strength / UNIT), (side - 1) / 2
    # Rounded, because the last bit of a cosine differs between libraries.
    cosine, sine = round(math.cos(angle), 12), round(math.sin(angle), 12)
    turn = np.array([[cosine, -sine], [sine, cosine]])
    return np.column_stack([turn, middle - turn.sum(axis=1) * middle])


def warp(image: Pixels, matrix: NDArray[np.float64]) -> None:
    """Show at each pixel what is at the place that the matrix leads to, bilinearly."""
    image[...] = cv2.warpAffine(
        image,
        matrix,
        (image.shape[1], image.shape[0]),
        flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=FILL,
    )


def identity(image: Pixels, _: int) -> None:
    """Leave the image as it is."""


OPERATIONS: dict[str, Operation] = {
    "identity": identity,
    "shear x": lambda image, strength: warp(image, shear_matrix(strength, 0)),
    "shear y": lambda image, strength: warp(image, shear_matrix(strength, 1)),
    "move x": lambda image, pixels: move(image, pixels, 0),
    "move y": lambda image, pixels: move(image, 0, pixels),
    "rotate": lambda image, strength: warp(image, rotation_matrix(strength, image.shape[0])),
    "brightness": brightness,
    "saturation": saturation,
    "contrast": contrast,
    "sharpness": sharpness,
    "posterize": posterize,
    "solarize": solarize,
    "autocontrast": autocontrast,
    "equalize": equalize,
}
"""By name, in the order of torchvision."""
