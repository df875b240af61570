"""Stored bytes and a box to one image of a batch, written straight into its place.

One filter everywhere (training, evaluation, prediction): JPEGs are shrunk by a power of two inside
the decoder while they still cover the box, then resized bilinearly; what is still twice as large
(raw pixels) is averaged over areas instead, so that nothing is skipped.

Of a JPEG only what the box needs is decoded: by the compiled extra (`region`), else as far as its
markers allow (`restart`). The pixels are the same, with and without either. Mapped bytes are only
touched where the interpreter lock is not held: the first touch may wait for a disk.
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
"""(bytes, stored width, stored height, box, flip, place in the batch)"""

_scratch = threading.local()


def render_jpeg(
    data: memoryview, width: int, height: int, box: list[int], flip: bool, out: Pixels
) -> None:
    left, top, right, bottom = box
    scale = dct_scale(right - left, bottom - top, out.shape[0])
    # What lies outside is mirrored from the whole image.
    inside = left >= 0 and top >= 0 and right <= width and bottom <= height
    if inside and decode_region is not None:
        left, top, right, bottom = left // scale, top // scale, right // scale, bottom // scale
        room = scratch((right - left + WIDEST) * (bottom - top) * 3)
        found = decode_region(data, width, height, left, top, right, bottom, scale, room)
        if found is not None:
            across, indent = found
            rows: Pixels = np.ndarray((bottom - top, across, 3), np.uint8, room)
            place(rows, [indent, 0, indent + right - left, bottom - top], flip, out)
            return
    elif inside and (part := cut_rows(data, height, top, bottom)) is not None:
        rows_cut, high, first_row = part
        image = decode_whole(rows_cut, width, high, scale)
        shown = [left, top - first_row, right, bottom - first_row]
        place(image, [edge // scale for edge in shown], flip, out)
        return
    image = decode_whole(data, width, height, scale)
    place(image, [edge // scale for edge in box], flip, out)


def decode_whole(data: memoryview, width: int, height: int, scale: int) -> Pixels:
    high, wide = -(-height // scale), -(-width // scale)
    image: Pixels = simplejpeg.decode_jpeg(
        data,
        min_height=high if scale > 1 else 0,
        min_width=wide if scale > 1 else 0,
        min_factor=scale,
        buffer=scratch(high * wide * 3),
    )
    if image.shape[:2] != (high, wide):
        raise ValueError("the image has another size than its index says")
    return image


def render_raw(
    data: memoryview, width: int, height: int, box: list[int], flip: bool, out: Pixels
) -> None:
    # The pixels are the last width * height * 3 bytes of the .npy member.
    image = np.frombuffer(data, dtype=np.uint8)[-width * height * 3 :].reshape(height, width, 3)
    place(image, box, flip, out)


RENDERERS: dict[str, Render] = {
    "jpeg": render_jpeg,
    "original": render_jpeg,
    "raw": render_raw,
}


def scratch(size: int, what: str = "decoded") -> bytearray:
    """This thread's buffer for decoded or for stored images, grown to at least `size` bytes."""
    buffer: bytearray | None = getattr(_scratch, what, None)
    if buffer is None or len(buffer) < size:
        buffer = bytearray(size)
        setattr(_scratch, what, buffer)
    return buffer


def place(image: Pixels, box: list[int], flip: bool, out: Pixels) -> None:
    """Cut the box out of an image, resize it to the batch's size, mirror it if asked."""
    left, top, right, bottom = box
    height, width = image.shape[:2]
    crop = image[max(top, 0) : bottom, max(left, 0) : right]
    beyond = (max(-top, 0), max(bottom - height, 0), max(-left, 0), max(right - width, 0))
    if any(beyond):
        crop = bordered(image, box, beyond)
    if crop.shape == out.shape:
        if flip:
            cv2.flip(crop, 1, dst=out)
        else:
            out[...] = crop
        return
    twice_as_large = min(crop.shape[:2]) >= 2 * out.shape[0]
    filter = cv2.INTER_AREA if twice_as_large else cv2.INTER_LINEAR
    cv2.resize(crop, (out.shape[1], out.shape[0]), dst=out, interpolation=filter)
    if flip:
        cv2.flip(out, 1, dst=out)


def bordered(image: Pixels, box: list[int], beyond: tuple[int, int, int, int]) -> Pixels:
    """The box with what lies outside mirrored from inside the image."""
    left, top, right, bottom = box
    whole = np.asarray(cv2.copyMakeBorder(image, *beyond, cv2.BORDER_REFLECT_101))
    return whole[top + beyond[0] : bottom + beyond[0], left + beyond[2] : right + beyond[2]]
