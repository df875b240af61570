"""The values of a sample: images as the bytes of a file, labels as numbers or names.

Invariants: a value is decoded by the encoding that the index names, never by its content, and never
by pickle. A value that contradicts its encoding raises Rejected: one image is lost, not the pack.
Images that are stored as pixels become a TIFF without compression, which every later step reads.
"""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from stoker.data.images.decode_any import Rejected
from stoker.data.index.read import MAX_PIXELS

PICKLES = ("pkl", "pickle")
FILES = ("jpeg", "png", "bytes", "image", "file", "tifffile")
"""Encodings whose bytes are those of an image file."""
IMAGES = ("jpeg", "png", "image", "pil", "jpeg_array", "jpegarray", "tifffile")
"""Encodings that hold images and nothing else."""
LISTS = {"list[jpeg]": "jpeg", "list[png]": "png", "list[pil]": "pil"}
ARRAYS = ("ndarray", "numpy", "tensor")
MODES = {"1": 0, "L": 1, "P": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4, "I;16": 2, "I": 4, "F": 4}
"""Bytes of a pixel by Pillow's names; eight pixels of the first fit into one."""
NUMBERS = {
    **{
        f"{kind}{bits}": f"<{kind[0]}{bits // 8}"
        for kind in ("int", "uint")
        for bits in (8, 16, 32, 64)
    },
    **{f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
    **{"int": "<i8", "float": "<f8", "bool": "<u1"},
}
TEXTS = ("str", "text", "str_int", "str_float", "str_decimal", "json")
LONGEST_LABEL = 1 << 12
_TENSOR_BYTES = 11
"""LitData's number for a tensor of unsigned bytes."""


def base_of(encoding: str) -> str:
    """An encoding without its details: `ndarray:uint8:32,32,3` is an ndarray."""
    return encoding.partition(":")[0]


def holds_image(encoding: str) -> bool:
    return encoding in LISTS or base_of(encoding) in IMAGES


def may_hold_image(encoding: str) -> bool:
    return holds_image(encoding) or base_of(encoding) in (*FILES, *ARRAYS)


def holds_label(encoding: str) -> bool:
    return encoding in NUMBERS or encoding in TEXTS


def image_file(encoding: str, data: bytes) -> bytes:
    """The bytes of an image file for a value. Raises Rejected."""
    try:
        if encoding in LISTS:
            return image_file(LISTS[encoding], the_only(data[4:]))
        decoder = _DECODERS.get(base_of(encoding))
        return decoder(encoding, data) if decoder else data
    except (struct.error, ValueError, TypeError, KeyError, IndexError) as error:
        raise Rejected(f"damaged: not a value of '{encoding}'") from error


def from_pil(encoding: str, data: bytes) -> bytes:
    width, height, length = struct.unpack_from("<III", data)
    mode = data[12 : 12 + length].decode("ascii") if length < 16 else ""
    if mode not in MODES:
        raise Rejected(f"pixels of mode '{mode}' are not read")
    pixels = memoryview(data)[12 + length :]
    row = width * MODES[mode] or (width + 7) // 8
    if not 0 < width * height <= MAX_PIXELS:
        raise Rejected(f"too many pixels ({width} x {height})" if width * height else "no pixels")
    if row * height != len(pixels):
        raise Rejected(f"damaged: {len(pixels):,} bytes for {width} x {height} pixels")
    return tiff(Image.frombytes(mode, (width, height), pixels.tobytes()))


def from_jpeg_array(encoding: str, data: bytes) -> bytes:
    return the_only(data)


def the_only(data: bytes) -> bytes:
    """The only image of a list: count, sizes, images. Raises Rejected where there are others."""
    (count,) = struct.unpack_from("<I", data)
    if count != 1:
        raise Rejected(f"{count:,} images in one sample: one is expected")
    (size,) = struct.unpack_from("<I", data, 4)
    if size != len(data) - 8:
        raise Rejected("damaged: a list of images that does not fill its value")
    return data[8:]


def from_ndarray(encoding: str, data: bytes) -> bytes:
    """An array of MosaicML Streaming: kind and shape are in the encoding, or before the values."""
    _, *details = encoding.split(":")
    at = 0
    kind = details[0] if details else {8: "uint8"}.get(data[0], "another kind")
    at += not details
    if kind != "uint8":
        raise Rejected(f"an array of {kind}: expected uint8")
    if len(details) > 1:
        shape = tuple(int(side) for side in details[1].split(","))
    else:
        sides, width = data[at] >> 2, 1 << (data[at] & 3)
        end = at + 1 + sides * width
        shape = tuple(np.frombuffer(data[at + 1 : end], f"<u{width}").tolist())
        at = end
    return from_pixels(shape, data[at:])


def from_numpy(encoding: str, data: bytes) -> bytes:
    return from_shaped(data, "<")


def from_tensor(encoding: str, data: bytes) -> bytes:
    if struct.unpack_from(">I", data)[0] != _TENSOR_BYTES:
        raise Rejected("a tensor of another kind: expected uint8")
    return from_shaped(data, ">")


def from_shaped(data: bytes, order: str) -> bytes:
    """An array of LitData: a number for its kind, the count of its sides, the sides, the values."""
    _, sides = struct.unpack_from(f"{order}II", data)
    if sides > 3:
        raise Rejected(f"an array of {sides:,} sides")
    shape = struct.unpack_from(f"{order}{sides}I", data, 8)
    return from_pixels(shape, data[8 + 4 * sides :])


def from_pixels(shape: tuple[int, ...], data: bytes) -> bytes:
    """Unsigned bytes as an image: rows, columns, and colours last or first."""
    if len(shape) not in (2, 3) or not 0 < math.prod(shape) <= 4 * MAX_PIXELS:
        raise Rejected(f"an array of shape {'x'.join(map(str, shape[:4]))} is no image")
    if math.prod(shape) != len(data):
        raise Rejected(
            f"damaged: {len(data):,} bytes for {'x'.join(map(str, shape))} unsigned ones"
        )
    pixels: NDArray[np.uint8] = np.frombuffer(data, np.uint8).reshape(shape)
    if len(shape) == 3 and shape[2] not in (1, 3, 4):
        if shape[0] not in (1, 3, 4):
            raise Rejected(f"an array of shape {'x'.join(map(str, shape))} is no image")
        pixels = np.ascontiguousarray(pixels.transpose(1, 2, 0))
    return tiff(Image.fromarray(pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels))


def tiff(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "TIFF")
    return file.getvalue()


_DECODERS: dict[str, Callable[[str, bytes], bytes]] = {
    "pil": from_pil,
    "jpeg_array": from_jpeg_array,
    "jpegarray": from_jpeg_array,
    "ndarray": from_ndarray,
    "numpy": from_numpy,
    "tensor": from_tensor,
}


def label_of(encoding: str, data: bytes) -> Any:
    """The label of a value: a number or a text; None where it is neither."""
    try:
        if encoding in NUMBERS:
            (number,) = np.frombuffer(data, NUMBERS[encoding]).tolist()
            return number
        if len(data) > LONGEST_LABEL:
            return None
        text = data.decode("utf-8", "surrogateescape")
        value = json.loads(text) if encoding == "json" else text
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str | int | float) else None
