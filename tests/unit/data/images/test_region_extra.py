"""The compiled extra gives the pixels of a full decode, and survives any bytes."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from stoker.data.images.jpeg import encode_jpeg
from stoker.data.loading import render as decode
from stoker.data.loading.render import Pixels, decode_whole, render_jpeg

extra = pytest.importorskip(
    "stoker_region", reason="the compiled extra is not installed: pip install ./extensions/region"
)

SAMPLINGS = ["444", "422", "420", "440", "411", "Gray"]


def picture(width: int, height: int) -> Pixels:
    """Colours that change every few pixels: a wrong neighbour shows."""
    random = np.random.default_rng([width, height])
    coarse = random.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3))
    fine = coarse.repeat(4, axis=0).repeat(4, axis=1)[:height, :width]
    return np.clip(fine + random.integers(-40, 40, fine.shape), 0, 255).astype(np.uint8)


def jpeg(width: int, height: int, sampling: str = "420", quality: int = 90) -> bytes:
    pixels = picture(width, height)
    if sampling == "Gray":
        pixels = np.ascontiguousarray(pixels[:, :, :1])
    colours = "GRAY" if sampling == "Gray" else "RGB"
    data: bytes = simplejpeg.encode_jpeg(pixels, quality, colours, sampling)
    return data


def saved(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", **options)
    return file.getvalue()


def region(data: bytes, size: tuple[int, int], box: list[int], scale: int = 1) -> Pixels:
    left, top, right, bottom = box
    room = bytearray((bottom - top) * (right - left + extra.WIDEST) * 3)
    across, indent = extra.decode_region(data, *size, *box, scale, room)
    rows = np.ndarray((bottom - top, across, 3), np.uint8, room)
    return rows[:, indent : indent + right - left]


class TestPixels:
    @settings(max_examples=300, deadline=None)
    @given(
        width=st.integers(8, 200),
        height=st.integers(8, 200),
        sampling=st.sampled_from(SAMPLINGS),
        quality=st.sampled_from([50, 90, 100]),
        scale=st.sampled_from([1, 2, 4, 8]),
        data=st.data(),
    )
    def test_are_those_of_a_full_decode(
        self,
        width: int,
        height: int,
        sampling: str,
        quality: int,
        scale: int,
        data: st.DataObject,
    ) -> None:
        stored = jpeg(width, height, sampling, quality)
        whole = decode_whole(stored, width, height, scale).copy()
        for _ in range(5):
            left = data.draw(st.integers(0, whole.shape[1] - 1))
            top = data.draw(st.integers(0, whole.shape[0] - 1))
            right = data.draw(st.integers(left + 1, whole.shape[1]))
            bottom = data.draw(st.integers(top + 1, whole.shape[0]))
            shown = region(stored, (width, height), [left, top, right, bottom], scale)
            np.testing.assert_array_equal(shown, whole[top:bottom, left:right])

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    @pytest.mark.parametrize("width", [33, 34, 47, 49, 50, 98])
    def test_single_columns_and_rows_too(self, width: int, sampling: str) -> None:
        stored = jpeg(width, 40, sampling)
        whole = simplejpeg.decode_jpeg(stored)
        for x in range(width):
            shown = region(stored, (width, 40), [x, 3, x + 1, 40])
            np.testing.assert_array_equal(shown, whole[3:, x : x + 1])
        for y in range(40):
            shown = region(stored, (width, 40), [2, y, width, y + 1])
            np.testing.assert_array_equal(shown, whole[y : y + 1, 2:])

    @settings(max_examples=100, deadline=None)
    @given(
        size=st.integers(5, 100),
        rows=st.integers(0, 3),
        flip=st.booleans(),
        data=st.data(),
    )
    def test_a_box_shows_the_same_with_and_without_the_extra(
        self, size: int, rows: int, flip: bool, data: st.DataObject
    ) -> None:
        stored = memoryview(encode_jpeg(picture(181, 243), 90, rows))
        left, top = data.draw(st.integers(-20, 180)), data.draw(st.integers(-20, 242))
        right = data.draw(st.integers(max(left, 0) + 1, 201))
        bottom = data.draw(st.integers(max(top, 0) + 1, 263))
        shown = np.empty((2, size, size, 3), np.uint8)
        for region_decoder, out in zip((extra.decode_region, None), shown, strict=True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(decode, "decode_region", region_decoder)
                render_jpeg(stored, 181, 243, [left, top, right, bottom], flip, out)
        np.testing.assert_array_equal(*shown)

    def test_threads_do_not_disturb_each_other(self) -> None:
        stored = {width: jpeg(width, 150) for width in (100, 123, 160, 177)}
        expected = {w: simplejpeg.decode_jpeg(d)[20:130, 9:80] for w, d in stored.items()}
        wrong: list[int] = []

        def work(width: int) -> None:
            for _ in range(100):
                shown = region(stored[width], (width, 150), [9, 20, 80, 130])
                if not (shown == expected[width]).all():
                    wrong.append(width)

        threads = [threading.Thread(target=work, args=(width,)) for width in stored]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


class TestKinds:
    @pytest.mark.parametrize(
        "data",
        [
            saved(Image.fromarray(picture(64, 48)), progressive=True),
            saved(Image.fromarray(picture(64, 48)).convert("CMYK")),
        ],
        ids=["progressive", "CMYK"],
    )
    def test_others_are_left_to_the_full_decode(self, data: bytes) -> None:
        room = bytearray(64 * 48 * 3)
        assert extra.decode_region(data, 64, 48, 8, 8, 16, 16, 1, room) is None

    def test_a_progressive_jpeg_is_rendered_all_the_same(self) -> None:
        data = saved(Image.fromarray(picture(64, 48)), progressive=True)
        out = np.empty((16, 16, 3), np.uint8)
        render_jpeg(memoryview(data), 64, 48, [8, 8, 24, 24], False, out)
        np.testing.assert_array_equal(out, simplejpeg.decode_jpeg(data)[8:24, 8:24])


class TestRefusals:
    DATA = jpeg(64, 48)

    @pytest.mark.parametrize(
        "box",
        [
            [-1, 0, 5, 5],
            [0, -1, 5, 5],
            [5, 5, 5, 9],
            [5, 5, 9, 5],
            [9, 9, 5, 5],
            [0, 0, 65, 5],
            [0, 0, 5, 49],
            [0, 0, 2**31 - 1, 5],
            [-(2**31), 0, 5, 5],
        ],
    )
    def test_a_box_outside(self, box: list[int]) -> None:
        with pytest.raises(ValueError, match="region"):
            extra.decode_region(self.DATA, 64, 48, *box, 1, bytearray(1 << 20))

    def test_a_box_outside_the_shrunk_image(self) -> None:
        with pytest.raises(ValueError, match="outside"):
            extra.decode_region(self.DATA, 64, 48, 0, 0, 40, 20, 2, bytearray(1 << 20))

    @pytest.mark.parametrize("scale", [-1, 0, 3, 16])
    def test_a_scale_that_is_none(self, scale: int) -> None:
        with pytest.raises(ValueError, match="scale"):
            extra.decode_region(self.DATA, 64, 48, 0, 0, 4, 4, scale, bytearray(1 << 20))

    @pytest.mark.parametrize("size", [(64, 47), (63, 48), (48, 64), (0, 48), (64, -1), (70000, 9)])
    def test_another_size_than_the_headers(self, size: tuple[int, int]) -> None:
        with pytest.raises(ValueError, match=r"size|outside"):
            extra.decode_region(self.DATA, *size, 0, 0, 4, 4, 1, bytearray(1 << 20))

    @pytest.mark.parametrize("room", [0, 1, 3 * 8 * 8, 3 * 24 * 32 - 1])
    def test_a_buffer_that_is_too_small_is_not_touched(self, room: int) -> None:
        out = bytearray(b"\x4d" * room)
        with pytest.raises(ValueError, match="buffer"):
            extra.decode_region(self.DATA, 64, 48, 20, 0, 44, 32, 1, out)
        assert out == b"\x4d" * room

    def test_a_buffer_that_cannot_be_written(self) -> None:
        with pytest.raises((TypeError, BufferError)):
            extra.decode_region(self.DATA, 64, 48, 0, 0, 4, 4, 1, bytes(1 << 20))

    @pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 20, 200, 600, 700, -1])
    def test_a_cut_off_file_is_refused_wherever_the_box_lies(self, length: int) -> None:
        out = np.empty((8, 8, 3), np.uint8)
        with pytest.raises(ValueError):
            render_jpeg(memoryview(self.DATA[:length]), 64, 48, [0, 0, 8, 8], False, out)

    def test_damage_is_refused_in_libjpegs_words(self) -> None:
        with pytest.raises(ValueError, match="Not a JPEG file"):
            region(b"<html>" * 200 + b"\xff\xd9", (64, 48), [0, 0, 64, 48])
        with pytest.raises(ValueError, match="Corrupt JPEG data"):
            region(self.DATA[:800] + b"\xff\xd9", (64, 48), [0, 0, 64, 48])

    def test_damage_above_or_in_the_box_is_refused_as_the_full_decode_refuses_it(self) -> None:
        hurt = bytearray(jpeg(200, 200))
        middle = len(hurt) // 4
        hurt[middle : middle + 4] = b"\xff\xd9\xff\xd9"
        with pytest.raises(ValueError):
            simplejpeg.decode_jpeg(bytes(hurt))
        with pytest.raises(ValueError):
            region(bytes(hurt), (200, 200), [100, 150, 190, 190])

    @settings(max_examples=500, deadline=None)
    @given(st.data())
    def test_any_damage_gives_pixels_or_a_value_error(self, data: st.DataObject) -> None:
        hurt = bytearray(self.DATA)
        for _ in range(data.draw(st.integers(1, 4))):
            hurt[data.draw(st.integers(0, len(hurt) - 1))] = data.draw(st.integers(0, 255))
        room = bytearray(b"\x4d" * (40 * (40 + extra.WIDEST) * 3 + 64))
        try:
            inside = memoryview(room)[:-64]
            extra.decode_region(bytes(hurt), 64, 48, 4, 4, 44, 44, 1, inside)
        except ValueError:
            pass
        assert room[-64:] == b"\x4d" * 64
