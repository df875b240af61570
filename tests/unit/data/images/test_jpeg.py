"""What is stored is a plain JPEG of the picture."""

from __future__ import annotations

import io

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from stoker.data.images.jpeg import encode_jpeg
from stoker.data.images.jpeg_rows import cut_rows


def waves(width: int, height: int) -> np.ndarray:
    down, across = np.mgrid[0:height, 0:width]
    channels = [127 + 120 * np.sin(across / 17 + down / (23 + 9 * each)) for each in range(3)]
    return np.stack(channels, axis=2).astype(np.uint8)


@pytest.mark.parametrize("rows", [0, 1, 2, 8])
@pytest.mark.parametrize("size", [(1, 1), (15, 17), (16, 16), (200, 131), (31, 500)])
def test_shows_the_picture_in_its_size(size: tuple[int, int], rows: int) -> None:
    pixels = waves(*size)
    data = encode_jpeg(pixels, 90, rows)
    height, width, colours, sampling = simplejpeg.decode_jpeg_header(data)
    assert (width, height, colours, sampling) == (*size, "YCbCr", "420")
    assert not Image.open(io.BytesIO(data)).info.get("progressive")
    assert np.abs(simplejpeg.decode_jpeg(data).astype(int) - pixels).mean() < 4


def test_the_same_pixels_give_the_same_bytes() -> None:
    pixels = waves(90, 70)
    assert encode_jpeg(pixels, 90) == encode_jpeg(pixels.copy(), 90)
    assert encode_jpeg(pixels, 50) != encode_jpeg(pixels, 90)


def test_pixels_need_not_lie_in_one_piece() -> None:
    turned = waves(90, 70).transpose(1, 0, 2)[:, ::-1]
    for rows in (0, 1):
        assert encode_jpeg(turned, 90, rows) == encode_jpeg(turned.copy(), 90, rows)


def test_its_rows_can_be_cut_out_unless_no_markers_were_asked_for() -> None:
    pixels = waves(90, 300)
    assert cut_rows(encode_jpeg(pixels, 90), 300, 100, 120) is not None
    assert cut_rows(encode_jpeg(pixels, 90, 0), 300, 100, 120) is None


def test_markers_cost_few_bytes() -> None:
    pixels = waves(500, 375)
    assert len(encode_jpeg(pixels, 90)) < len(encode_jpeg(pixels, 90, 0)) + 500
