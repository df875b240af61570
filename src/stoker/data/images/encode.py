"""How an image is stored: its size, its codec, its bytes.

Invariant: the stored bytes depend on the image and the settings alone.
"""

from __future__ import annotations

import hashlib
import io
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from stoker.data.images.decode_any import Inspected, Pixels, Rejected, coarseness_of
from stoker.data.images.jpeg import encode_jpeg
from stoker.data.images.jpeg_metadata import without_metadata
from stoker.data.images.jpeg_rows import claims_table
from stoker.data.index.description import CODECS
from stoker.recipe.recipe import check_values, key

JPEG_MAX_SIDE = 65500
MOST_METADATA = 64 << 10
"""Bytes that a JPEG may hold beside its picture: an EXIF segment with its preview fits."""
SMALL_SIDE = 128
"""JPEGs whose longer side is at most this keep their own bytes, whatever their quality."""


@dataclass(frozen=True)
class Storage:
    codec: str = key(
        "jpeg",
        "original keeps the bytes of every upright JPEG, whatever its size; raw stores pixels: "
        "fast to read, but large for all but small images",
        choices=CODECS,
    )
    max_side: int = key(
        500, "shrink until the longer side has at most N pixels; 0 keeps the size", at_least=0
    )
    quality: int = key(
        90, "JPEG quality; a JPEG of lower quality keeps its own bytes", at_least=1, at_most=100
    )
    min_side: int = key(
        0,
        "shrink until the shorter side has at most N pixels, instead of the longer; 0 goes by "
        "--max-side",
        at_least=0,
    )
    near_duplicates: bool = key(
        False, "also find images that look alike, such as one photograph in two sizes"
    )

    def check(self) -> None:
        """Raise BadRequest where a setting is outside its limits."""
        check_values(self)


def fit(pixels: Pixels, storage: Storage) -> Pixels:
    """The pixels at the size that is stored, shrunk by averaging areas."""
    height, width = pixels.shape[:2]
    target, side = storage.max_side, max(height, width)
    if storage.min_side:
        target, side = storage.min_side, min(height, width)
    if storage.codec == "original" or not target or side <= target:
        return pixels
    size = (max(round(width * target / side), 1), max(round(height * target / side), 1))
    shrunk: Pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return shrunk


def encode(data: bytes, image: Inspected, pixels: Pixels, storage: Storage) -> bytes:
    """The bytes to store for an image. Raises Rejected where it is too large for a JPEG."""
    if storage.codec == "raw":
        array = io.BytesIO()
        np.lib.format.write_array(array, np.ascontiguousarray(pixels), version=(1, 0))
        return array.getvalue()
    if pixels is image.pixels and may_stay(image, storage) and not claims_table(data):
        own = own_bytes(data, pixels)
        if own is not None:
            return own
    if max(pixels.shape[:2]) > JPEG_MAX_SIDE:
        raise Rejected(f"longer than {JPEG_MAX_SIDE} pixels, the most a JPEG can hold")
    return encode_jpeg(pixels, storage.quality)


def own_bytes(data: bytes, pixels: Pixels) -> bytes | None:
    """A JPEG's own bytes, without its metadata where that is large; None where they are still many
    more than the pixels."""
    if len(data) > MOST_METADATA:
        trimmed = without_metadata(data)
        if trimmed is not None and len(data) - len(trimmed) > MOST_METADATA:
            with suppress(ValueError):
                if np.array_equal(simplejpeg.decode_jpeg(trimmed, colorspace="RGB"), pixels):
                    data = trimmed
    return data if len(data) <= pixels.nbytes + MOST_METADATA else None


def may_stay(image: Inspected, storage: Storage) -> bool:
    """Whether a file's own bytes are stored. Not if encoding at the chosen quality makes them much
    smaller, and so faster to read and decode; small images lose more by that than they gain."""
    if storage.codec == "original":
        return image.upright_jpeg
    small = max(image.pixels.shape[:2]) <= SMALL_SIDE
    return image.kept and (small or image.coarseness >= coarseness_at(storage.quality))


@cache
def coarseness_at(quality: int) -> int:
    """`coarseness_of` a JPEG of this quality."""
    data = simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8), quality=quality)
    with Image.open(io.BytesIO(data)) as image:
        return coarseness_of(image)


def short_hash(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:16]


def pixel_hash(pixels: Pixels) -> bytes:
    """A hash of the pixels: equal for files with the same picture, whatever their bytes."""
    digest = hashlib.sha256(f"{pixels.shape[0]}x{pixels.shape[1]}".encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()[:16]


def look(pixels: Pixels) -> int:
    """A perceptual hash: on an 8 x 8 grid, whether a cell is darker than the one to its right."""
    grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    grey = cv2.resize(grey, (9, 8), interpolation=cv2.INTER_AREA)
    return int.from_bytes(np.packbits(grey[:, 1:] > grey[:, :-1]).tobytes(), "big")
