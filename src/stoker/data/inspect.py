"""Untrusted bytes to upright RGB pixels, or a reason why not.

Invariant: every image is decoded in full here, once, at packing time; whatever is wrong with it is
said here and never during training. Sizes are checked before pixels are made.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""What Pillow may open; a phone's MPO files open as JPEG."""
MAX_PIXELS = 100_000_000
MAX_BYTES = 256 << 20
ORIENTATION_TAG = 0x0112
_WIDE_MODES = ("I;16", "I;16B", "I;16L", "I", "F")


class Rejected(Exception):
    """An image that cannot be used; the text says why."""


@dataclass(frozen=True)
class Inspected:
    """A decoded image, upright, and what was found on the way."""

    pixels: Pixels
    upright_jpeg: bool
    """The file's own bytes are an upright JPEG without stray bytes: they may be stored."""
    kept: bool
    """And it is a baseline one, which decodes twice as fast as a progressive one."""
    orientation: int
    """EXIF orientation of the file, 1 (upright) to 8; already applied to the pixels."""


def inspect(data: bytes) -> Inspected:
    """Decode an image completely, turn it upright, make it RGB."""
    return decode(data, open_image(data))


def open_image(data: bytes) -> Image.Image:
    """Read an image's header; no pixels yet."""
    if not data:
        raise Rejected("empty file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise Rejected("too many pixels") from error
        except Exception as error:
            raise Rejected(f"not an image of a known kind ({', '.join(FORMATS)})") from error
    if image.width * image.height > MAX_PIXELS:
        raise Rejected(f"too many pixels ({image.width} x {image.height})")
    return image


def decode(data: bytes, image: Image.Image) -> Inspected:
    """All pixels of an opened image."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            orientation = orientation_of(image)
            plain = image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L")
            clean = decode_plain_jpeg(data) if plain else None
            pixels = to_rgb(image) if clean is None else clean
        except Rejected:
            raise
        except Exception as error:
            # Pillow's decoders raise whatever their format's parser met: any of it means that
            # this file does not decode.
            raise Rejected(f"damaged: {one_line(error)}") from error
    baseline = not image.info.get("progressive")
    # Pillow turns a TIFF upright by itself while loading it.
    left_to_do = 1 if image.format == "TIFF" else orientation
    kept = clean is not None and orientation == 1
    return Inspected(upright(pixels, left_to_do), kept, kept and baseline, orientation)


def one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def decode_plain_jpeg(data: bytes) -> Pixels | None:
    """A JPEG's pixels; None where libjpeg only grumbles at stray bytes and Pillow may decide."""
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace="RGB")
        return pixels
    except ValueError as error:
        if "extraneous bytes" in str(error):
            return None
        raise Rejected(f"damaged: {one_line(error)}") from error


def orientation_of(image: Image.Image) -> int:
    """EXIF orientation, 1 where there is none or where the EXIF block cannot be read."""
    try:
        value: Any = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:
        # A broken EXIF block says nothing about the pixels: they are kept as they lie.
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def to_rgb(image: Image.Image) -> Pixels:
    """Any mode to RGB: the first frame, 16 bits scaled to 8, transparency over white."""
    image.seek(0)
    image.load()
    if image.mode in _WIDE_MODES:
        wide = np.asarray(image, dtype=np.float64)
        top = 65535.0 if image.mode != "F" else max(float(wide.max(initial=0)), 1.0)
        grey = np.clip(wide * (255.0 / top), 0, 255).astype(np.uint8)
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        clear = image.convert("RGBA")
        background = Image.new("RGBA", clear.size, (255, 255, 255, 255))
        image = Image.alpha_composite(background, clear)
    return np.ascontiguousarray(np.asarray(image.convert("RGB"), dtype=np.uint8))


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Undo an EXIF orientation."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)
