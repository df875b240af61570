"""Which bytes are stored: sizes, codecs, and when a JPEG keeps its own."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from samples import picture
from stoker.data.images.decode_any import inspect
from stoker.data.images.encode import SMALL_SIDE, Storage, coarseness_at, encode, fit, pixel_hash
from stoker.errors import BadRequest


def saved(size: tuple[int, int], form: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    picture(1, 1, size).save(file, form, **options)
    return file.getvalue()


def stored(data: bytes, **settings: Any) -> bytes:
    storage, image = Storage(**settings), inspect(data)
    return encode(data, image, fit(image.pixels, storage), storage)


def size_of(data: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(data)) as image:
        return image.size


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


class TestSizes:
    @pytest.mark.parametrize(
        ("size", "settings", "expected"),
        [
            ((800, 600), {"max_side": 400}, (400, 300)),
            ((600, 800), {"max_side": 400}, (300, 400)),
            ((800, 600), {"max_side": 0}, (800, 600)),
            ((300, 200), {"max_side": 400}, (300, 200)),
            ((800, 600), {"min_side": 300}, (400, 300)),
            ((600, 800), {"min_side": 300}, (300, 400)),
            ((800, 200), {"min_side": 300}, (800, 200)),
            ((800, 600), {"min_side": 300, "max_side": 100}, (400, 300)),
            ((900, 301), {"min_side": 300, "max_side": 0}, (897, 300)),
            ((800, 1), {"max_side": 100}, (100, 1)),
        ],
    )
    def test_by_the_longer_or_the_shorter_side(
        self, size: tuple[int, int], settings: dict[str, int], expected: tuple[int, int]
    ) -> None:
        assert size_of(stored(saved(size), **settings)) == expected

    @settings(max_examples=60, deadline=None)
    @given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 200), st.integers(0, 200))
    def test_never_larger_and_never_out_of_shape(
        self, width: int, height: int, max_side: int, min_side: int
    ) -> None:
        pixels = np.zeros((height, width, 3), np.uint8)
        out = fit(pixels, Storage(max_side=max_side, min_side=min_side))
        tall, wide = out.shape[:2]
        assert 1 <= wide <= width
        assert 1 <= tall <= height
        if min_side:
            assert min(tall, wide) == min(min_side, height, width)
        elif max_side:
            assert max(tall, wide) == min(max_side, max(height, width))
        # To the nearest pixel.
        assert abs(wide * height - tall * width) <= max(width, height)

    @pytest.mark.parametrize("name", ["max_side", "min_side"])
    def test_sides_below_nothing_are_refused(self, name: str) -> None:
        with pytest.raises(BadRequest, match=name):
            Storage(**{name: -1}).check()


class TestQuality:
    """Larger than small, so that the rule of quality decides."""

    SIZE = (SMALL_SIDE + 40, SMALL_SIDE + 8)

    @pytest.mark.parametrize("quality", [95, 99, 100])
    def test_a_finer_jpeg_is_encoded_again(self, quality: int) -> None:
        data = saved(self.SIZE, quality=quality)
        again = stored(data, quality=90)
        assert again != data
        assert len(again) < len(data)
        with Image.open(io.BytesIO(again)) as image:
            assert sum(image.quantization[0]) == coarseness_at(90)  # type: ignore[attr-defined]

    @pytest.mark.parametrize("quality", [50, 75, 90])
    def test_a_coarser_or_equal_one_keeps_its_bytes(self, quality: int) -> None:
        data = saved(self.SIZE, quality=quality)
        assert stored(data, quality=90) == data

    @pytest.mark.parametrize("quality", [75, 100])
    def test_a_small_one_keeps_its_bytes(self, quality: int) -> None:
        data = saved((SMALL_SIDE, 60), quality=quality)
        assert stored(data, quality=60) == data

    def test_just_above_small_it_does_not(self) -> None:
        data = saved((SMALL_SIDE + 1, 60), quality=95)
        assert stored(data, quality=60) != data

    def test_coarseness_falls_with_quality(self) -> None:
        values = [coarseness_at(quality) for quality in range(1, 101)]
        assert values == sorted(values, reverse=True)
        assert values[0] > values[49] > values[89] > values[99]


class TestOriginal:
    @pytest.mark.parametrize(
        "options", [{}, {"quality": 100}, {"progressive": True}, {"quality": 20}], ids=str
    )
    def test_every_upright_jpeg_keeps_its_bytes(self, options: dict[str, Any]) -> None:
        data = saved((700, 600), **options)
        assert stored(data, codec="original", max_side=100, quality=10) == data

    @pytest.mark.parametrize("orientation", range(2, 9))
    def test_a_turned_one_is_turned_and_encoded(self, orientation: int) -> None:
        data = saved((60, 40), exif=turned(orientation))
        again = stored(data, codec="original")
        assert again != data
        assert size_of(again) == ((40, 60) if orientation > 4 else (60, 40))
        assert inspect(again).orientation == 1
        difference = inspect(again).pixels.astype(int) - inspect(data).pixels
        assert np.abs(difference).mean() < 12

    def test_a_png_becomes_a_jpeg_of_its_size(self) -> None:
        again = stored(saved((700, 600), "PNG"), codec="original", max_side=100)
        assert size_of(again) == (700, 600)
        with Image.open(io.BytesIO(again)) as image:
            assert image.format == "JPEG"


class TestJpeg:
    def test_a_progressive_one_is_encoded_again(self) -> None:
        again = stored(saved((60, 40), progressive=True))
        with Image.open(io.BytesIO(again)) as image:
            assert not image.info.get("progressive")

    def test_a_grey_one_keeps_its_bytes(self) -> None:
        file = io.BytesIO()
        picture(1, 1, (60, 40)).convert("L").save(file, "JPEG")
        assert stored(file.getvalue()) == file.getvalue()

    def test_raw_is_an_array(self) -> None:
        data = saved((60, 40), "PNG")
        array = np.load(io.BytesIO(stored(data, codec="raw")))
        assert (array == inspect(data).pixels).all()

    def test_the_same_picture_has_one_hash_whatever_its_bytes(self) -> None:
        png, bmp = (inspect(saved((60, 40), form)).pixels for form in ("PNG", "BMP"))
        assert pixel_hash(png) == pixel_hash(bmp)
        assert pixel_hash(png) != pixel_hash(png.reshape(60, 40, 3))
