"""One image of a batch from its stored bytes and its crop box, written into the batch buffer.

Training, evaluation and prediction use the same filter. The decoder shrinks a JPEG by a power of
two as long as the box keeps enough pixels; then it is resized bilinearly. A crop that is still at
least twice as large (raw pixels) is averaged over areas, so that no pixel is skipped.

Of a JPEG only what the box needs is decoded: by the compiled extra (`images/jpeg_region`), or else
the rows between its restart markers (`images/jpeg_rows`). The pixels are the same with and without
either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from stoker.data.images.jpeg_region import WIDEST, decode_region
from stoker.data.images.jpeg_rows import cut_rows
from stoker.data.loading.crops import dct_scale

Pixels = NDArray[np.uint8]
Render = Callable[[memoryview, int, int, list[int], bool, Pixels], None]
"""(stored bytes, stored width, stored height, box, flip, output image)"""

_scratch = threading.local()


def render_jpeg(
    data: memoryview,
    width: int,
    height: int,
    box: list[int],
    flip: bool,
    out: Pixels,
    compiled: bool = True,
) -> None:
    """Write a box of a JPEG into `out`; not by the compiled extra where `compiled` is not set."""
    left, top, right, bottom = box
    scale = dct_scale(right - left, bottom - top, out.shape[0])
    # A box that reaches outside needs the whole image, which is mirrored there.
    inside = left >= 0 and top >= 0 and right <= width and bottom <= height
    if inside and compiled and decode_region is not None:
        left, top, right, bottom = (edge // scale for edge in box)
        buffer = scratch((right - left + WIDEST) * (bottom - top) * 3)
        region = decode_region(data, width, height, left, top, right, bottom, scale, buffer)
        if region is not None:
            across, indent = region
            rows: Pixels = np.ndarray((bottom - top, across, 3), np.uint8, buffer)
            write_crop(rows, [indent, 0, indent + right - left, bottom - top], flip, out)
            return
    elif inside and (part := cut_rows(data, height, top, bottom)) is not None:
        data, height, first_row = part
        box = [left, top - first_row, right, bottom - first_row]
    image = decode_whole(data, width, height, scale)
    write_crop(image, [edge // scale for edge in box], flip, out)


def decode_whole(data: memoryview, width: int, height: int, scale: int) -> Pixels:
    """A JPEG's pixels, shrunk by `scale`. Raises ValueError if it is damaged or of another size."""
    high, wide = -(-height // scale), -(-width // scale)
    image: Pixels = simplejpeg.decode_jpeg(
        data,
        min_height=high if scale > 1 else 0,
        min_width=wide if scale > 1 else 0,
        min_factor=scale,
        buffer=scratch(high * wide * 3),
    )
    if image.shape[:2] != (high, wide):
        raise ValueError(
            f"the image has {image.shape[1]} x {image.shape[0]} pixels, not {wide} x {high}"
        )
    return image


def render_raw(
    data: memoryview, width: int, height: int, box: list[int], flip: bool, out: Pixels
) -> None:
    # The pixels are the last width * height * 3 bytes of the .npy member.
    image = np.frombuffer(data, dtype=np.uint8)[-width * height * 3 :].reshape(height, width, 3)
    write_crop(image, box, flip, out)


RENDERERS: dict[str, Render] = {"jpeg": render_jpeg, "original": render_jpeg, "raw": render_raw}


def scratch(size: int, name: str = "decoded") -> bytearray:
    """This thread's buffer of a name (decoded or stored images), of at least `size` bytes."""
    buffer: bytearray | None = getattr(_scratch, name, None)
    if buffer is None or len(buffer) < size:
        buffer = bytearray(size)
        setattr(_scratch, name, buffer)
    return buffer


def write_crop(image: Pixels, box: list[int], flip: bool, out: Pixels) -> None:
    """Write the box of an image into `out`, resized to it and mirrored where `flip` is set."""
    left, top, right, bottom = box
    height, width = image.shape[:2]
    crop = image[max(top, 0) : bottom, max(left, 0) : right]
    margins = (max(-top, 0), max(bottom - height, 0), max(-left, 0), max(right - width, 0))
    if any(margins):
        crop = bordered(image, box, margins)
    if crop.shape == out.shape:
        if flip:
            cv2.flip(crop, 1, dst=out)
        else:
            out[...] = crop
        return
    filter = cv2.INTER_AREA if min(crop.shape[:2]) >= 2 * out.shape[0] else cv2.INTER_LINEAR
    cv2.resize(crop, (out.shape[1], out.shape[0]), dst=out, interpolation=filter)
    if flip:
        cv2.flip(out, 1, dst=out)


def bordered(image: Pixels, box: list[int], margins: tuple[int, int, int, int]) -> Pixels:
    """A box of an image that is mirrored at its edges. `margins` (top, bottom, left, right) are the
    rows and columns of the box outside the image."""
    left, top, right, bottom = box
    whole = np.asarray(cv2.copyMakeBorder(image, *margins, cv2.BORDER_REFLECT_101))
    return whole[top + margins[0] : bottom + margins[0], left + margins[2] : right + margins[2]]
