"""Untrusted bytes to upright RGB pixels, or a reason why not.

Invariant: every image is decoded in full here, once, at packing time, so that a damaged one is
rejected here and never stops a training. Sizes are checked before memory for pixels is taken.
"""

from __future__ import annotations

import io
import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from stoker.data.images.png_check import png_trouble, too_many_chunks
from stoker.data.index.read import MAX_PIXELS
from stoker.text import shown

Pixels = NDArray[np.uint8]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that Pillow may open; MPO files of phones open as JPEG."""
MAX_BYTES = 256 << 20
MAX_SCANS, MAX_SCANNED = 1000, 10_000_000_000
"""Scans of a JPEG, and pixels times scans: a small file with many scans can take hours."""
BAND_PIXELS = 4_000_000
ORIENTATION_TAG = 0x0112
LONGEST_REASON = 200
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
_EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0x([0-9a-f]{2})")
_HARMLESS = re.compile("Could not determine subsampling|bad ICC marker")
"""Errors for files that Pillow decodes well: rare sampling, a colour profile's numbering."""
_WIDE_MODES = ("I;16", "I;16B", "I;16L", "I", "F")


class Rejected(Exception):
    """An image that cannot be used; the text is the reason, in one printable line."""

    def __init__(self, reason: str) -> None:
        super().__init__(shown(reason)[:LONGEST_REASON])


@dataclass(frozen=True)
class Inspected:
    """A decoded image, upright, and the properties of its file."""

    pixels: Pixels
    upright_jpeg: bool
    """The file is an upright JPEG without stray bytes: its own bytes may be stored."""
    kept: bool
    """It is also a baseline JPEG, which decodes twice as fast as a progressive one."""
    orientation: int
    """EXIF orientation of the file, 1 (upright) to 8; already applied to the pixels."""
    coarseness: int
    """Sum of a JPEG's first quantisation table; 0 for other formats."""


def inspect(data: bytes) -> Inspected:
    """Decode an image completely to upright RGB. Raises Rejected where that is not possible."""
    return decode(data, open_image(data))


def open_image(data: bytes) -> Image.Image:
    """Read an image's header, not its pixels. Raises Rejected for a file not to be decoded."""
    if not data:
        raise Rejected("empty file")
    if too_many_chunks(data):
        raise Rejected("damaged: a PNG of too many pieces")
    with warnings.catch_warnings(action="ignore"):
        try:
            image = Image.open(io.BytesIO(data), formats=FORMATS)
        except Image.DecompressionBombError as error:
            raise Rejected("too many pixels") from error
        except UnidentifiedImageError as error:
            raise Rejected(f"not an image of a known kind ({', '.join(FORMATS)})") from error
        except Exception as error:
            raise Rejected(f"damaged: {error_text(error)}") from error
    if image.width * image.height > MAX_PIXELS:
        raise Rejected(f"too many pixels ({image.width} x {image.height})")
    if image.format in ("JPEG", "MPO"):
        scans = scans_of(data)
        if scans > MAX_SCANS or scans * image.width * image.height > MAX_SCANNED:
            raise Rejected(f"too many scans ({scans:,})")
    return image


def scans_of(data: bytes) -> int:
    """Scans that a decoder reads, up to MAX_SCANS + 1: one, if the first of a sequential JPEG holds
    all colours."""
    offset, scans, colours = 2, 0, -1
    while scans <= MAX_SCANS and (match := _MARKER.search(data, offset)):
        marker, body = data[match.start() + 1], match.end() + 2
        if marker == 0xD9:
            break
        if marker in (0xC0, 0xC1):
            colours = int.from_bytes(data[body + 5 : body + 6])
        if marker == 0xDA:
            scans += 1
            if int.from_bytes(data[body : body + 1]) == colours:
                break
        offset = match.end() + max(int.from_bytes(data[match.end() : body]), 2)
    return scans


def decode(data: bytes, image: Image.Image) -> Inspected:
    """Decode all pixels of an opened image. Raises Rejected where it is damaged."""
    with warnings.catch_warnings(action="ignore"):
        try:
            orientation = orientation_of(image)
            plain = image.format in ("JPEG", "MPO") and image.mode in ("RGB", "L")
            clean = decode_plain_jpeg(data) if plain else None
            if image.format == "PNG" and (trouble := png_trouble(data)):
                raise Rejected(f"damaged: {trouble}")
            pixels = to_rgb(image) if clean is None else clean
        except Rejected:
            raise
        except Exception as error:
            # Pillow's decoders raise many types of errors; each means that the file is damaged.
            raise Rejected(f"damaged: {error_text(error)}") from error
    # Pillow itself turns a TIFF upright when it loads it.
    remaining = 1 if image.format == "TIFF" else orientation
    own = clean is not None and orientation == 1
    kept = own and not image.info.get("progressive")
    return Inspected(upright(pixels, remaining), own, kept, orientation, coarseness_of(image))


def coarseness_of(image: Image.Image) -> int:
    """Sum of a JPEG's first quantisation table: the larger, the lower its quality."""
    tables: dict[int, list[int]] = getattr(image, "quantization", {})
    return sum(tables[0]) if 0 in tables else 0


def error_text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def decode_plain_jpeg(data: bytes) -> Pixels | None:
    """A JPEG's pixels; None after a harmless error: Pillow decides. Else raises Rejected."""
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace="RGB")
        return pixels
    except ValueError as error:
        extra = _EXTRANEOUS.search(str(error))
        if _HARMLESS.search(str(error)) if extra is None else not inside_scan(data, extra):
            return None
        raise Rejected(f"damaged: {error_text(error)}") from error


def inside_scan(data: bytes, extra: re.Match[str]) -> bool:
    """Whether bytes that libjpeg skipped belong to a damaged scan, and are not just padding."""
    count, marker = int(extra[1]), int(extra[2], 16)
    if 0xD0 <= marker <= 0xD7:
        return True
    offset = data.find(b"\xff\xda")
    while (offset := data.find(bytes([0xFF, marker]), offset + 2)) >= 0:
        if len(set(data[max(offset - count, 0) : offset])) > 1:
            return True
    return False


def orientation_of(image: Image.Image) -> int:
    """EXIF orientation, 1 where there is none or where the EXIF block cannot be read."""
    try:
        value: Any = image.getexif().get(ORIENTATION_TAG, 1)
    except Exception:
        # A broken EXIF block is no damage of the pixels: they are used as they are stored.
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def to_rgb(image: Image.Image) -> Pixels:
    """The first frame as RGB: 16 bits are scaled to 8, transparency is put over white."""
    # Some rows at a time: all at once would take many times an image's own memory.
    image.seek(0)
    image.load()
    pixels = np.empty((image.height, image.width, 3), dtype=np.uint8)
    top = max(float(np.asarray(image).max(initial=0)), 1.0) if image.mode == "F" else 65535.0
    rows = max(BAND_PIXELS // max(image.width, 1), 1)
    for start in range(0, image.height, rows):
        band = image.crop((0, start, image.width, min(start + rows, image.height)))
        if band.mode in _WIDE_MODES:
            wide = np.asarray(band, dtype=np.float64) * (255.0 / top)
            pixels[start : start + rows] = np.clip(wide, 0, 255).astype(np.uint8)[:, :, None]
            continue
        if band.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
            clear = band.convert("RGBA")
            background = Image.new("RGBA", clear.size, (255, 255, 255, 255))
            band = Image.alpha_composite(background, clear)
        pixels[start : start + rows] = np.asarray(band.convert("RGB"), dtype=np.uint8)
    return pixels


def upright(pixels: Pixels, orientation: int) -> Pixels:
    """Undo an EXIF orientation."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)
