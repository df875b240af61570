"""Values of samples: images that are stored as pixels, and labels."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shard_sets import jpeg, pil, pixels
from stoker.data.images.decode_any import Rejected, inspect
from stoker.data.sources.shards.values import image_file, label_of

ENCODINGS = [
    *("pil", "jpeg_array", "list[jpeg]", "list[pil]", "ndarray", "ndarray:uint8", "numpy"),
    *("ndarray:uint8:12,16,3", "ndarray:float32", "ndarray:uint8:x", "tensor"),
]


def as_pil(image: Image.Image) -> bytes:
    head = np.array([*image.size, len(image.mode)], "<u4").tobytes()
    return head + image.mode.encode() + image.tobytes()


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "1", "CMYK", "LA"])
def test_pixels_of_pillow(mode: str) -> None:
    image = pil(0, 1).convert(mode)
    found = inspect(image_file("pil", as_pil(image))).pixels
    if mode in ("RGB", "L", "1"):
        assert np.array_equal(found, np.asarray(image.convert("RGB")))
    assert found.shape == (12, 16, 3)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "damaged"),
        (struct.pack("<III", 16, 12, 3) + b"RGB", "damaged"),
        (struct.pack("<III", 2**31, 2**31, 3) + b"RGB", "too many pixels"),
        (struct.pack("<III", 0, 5, 3) + b"RGB", "no pixels"),
        (struct.pack("<III", 1, 1, 2**30), "are not read"),
        (struct.pack("<III", 1, 1, 3) + b"XYZ" + bytes(3), "are not read"),
    ],
)
def test_pixels_that_contradict_themselves(data: bytes, reason: str) -> None:
    with pytest.raises(Rejected, match=reason):
        image_file("pil", data)


def test_colours_first_or_last() -> None:
    last, first = pixels(1, 0), pixels(1, 0).transpose(2, 0, 1)
    for array in (last, np.ascontiguousarray(first)):
        shape = struct.pack(f"<II{array.ndim}I", 3, array.ndim, *array.shape)
        assert np.array_equal(inspect(image_file("numpy", shape + array.tobytes())).pixels, last)


def test_a_list_of_several_images_is_refused() -> None:
    one = jpeg(0, 0)
    sizes = struct.pack("<III", 2, len(one), len(one))
    with pytest.raises(Rejected, match="2 images in one sample"):
        image_file("jpeg_array", sizes + one + one)
    assert image_file("jpeg_array", struct.pack("<II", 1, len(one)) + one) == one


@given(st.sampled_from(ENCODINGS), st.binary(max_size=80))
def test_any_bytes_are_an_image_or_rejected(encoding: str, data: bytes) -> None:
    try:
        image_file(encoding, data)
    except Rejected as rejection:
        assert str(rejection)


@pytest.mark.parametrize(
    ("encoding", "data", "label"),
    [
        ("int", np.int64(-3).tobytes(), -3),
        ("uint8", b"\xff", 255),
        ("int8", b"\xff", -1),
        ("float32", np.float32(0.5).tobytes(), 0.5),
        ("str", "für".encode(), "für"),
        ("str_int", b"12", "12"),
        ("json", b'"cat"', "cat"),
        ("json", b"[1]", None),
        ("json", b"[" * 5000, None),
        ("int", b"123", None),
        ("str", b"x" * 5000, None),
    ],
)
def test_labels(encoding: str, data: bytes, label: object) -> None:
    assert label_of(encoding, data) == label


@given(st.sampled_from(["int", "uint16", "float16", "str", "json", "bool"]), st.binary(max_size=40))
def test_any_bytes_are_a_label_or_none(encoding: str, data: bytes) -> None:
    assert isinstance(label_of(encoding, data), str | int | float | None)
