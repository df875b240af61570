"""What a box shows is what a plain decode, crop and resize would show."""

from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image

from stoker.data.loading.crops import dct_scale
from stoker.data.loading.render import Pixels, render_jpeg, render_raw

Box = list[int]


def waves(width: int, height: int) -> Pixels:
    """Smooth, different everywhere and without symmetry: a shift of pixels shows."""
    down, across = np.mgrid[0:height, 0:width].astype(np.float64)
    red = 127 + 120 * np.sin(across / 17 + down / 41)
    green = 127 + 120 * np.cos(down / 23 - across / 53)
    blue = 255 * across / width
    return np.stack([red, green, blue], axis=2).astype(np.uint8)


def jpeg(pixels: Pixels, subsampling: str = "420") -> memoryview:
    return memoryview(simplejpeg.encode_jpeg(pixels, quality=95, colorsubsampling=subsampling))


def npy(pixels: Pixels) -> memoryview:
    file = io.BytesIO()
    np.save(file, pixels)
    return memoryview(file.getvalue())


def output(size: int) -> Pixels:
    """One image's place in a batch, with neighbours that must not be touched."""
    return np.full((3, size, size, 3), 77, np.uint8)[1]


def rendered_jpeg(data: memoryview, box: Box, size: int, *, flip: bool = False) -> Pixels:
    height, width = simplejpeg.decode_jpeg_header(data)[:2]
    out = output(size)
    render_jpeg(data, width, height, box, flip, out)
    return out


def rendered_raw(pixels: Pixels, box: Box, size: int, *, flip: bool = False) -> Pixels:
    out = output(size)
    render_raw(npy(pixels), pixels.shape[1], pixels.shape[0], box, flip, out)
    return out


def plainly(pixels: Pixels, box: Box, size: int, filter: int = cv2.INTER_LINEAR) -> Pixels:
    left, top, right, bottom = box
    return cv2.resize(pixels[top:bottom, left:right], (size, size), interpolation=filter)


class TestJpeg:
    @pytest.mark.parametrize("box", [[0, 0, 101, 77], [10, 5, 70, 60], [40, 20, 101, 77]])
    @pytest.mark.parametrize("size", [40, 64, 100])
    def test_equals_full_decode_crop_and_linear_resize_at_full_scale(
        self, box: Box, size: int
    ) -> None:
        data = jpeg(waves(101, 77))
        assert dct_scale(box[2] - box[0], box[3] - box[1], size) == 1
        expected = plainly(simplejpeg.decode_jpeg(data), box, size)
        np.testing.assert_array_equal(rendered_jpeg(data, box, size), expected)

    @pytest.mark.parametrize("subsampling", ["444", "422", "420"])
    @pytest.mark.parametrize("shape", [(320, 240), (333, 247), (257, 301)])
    @pytest.mark.parametrize(("size", "scale"), [(80, 2), (50, 4), (24, 8)])
    def test_is_close_to_it_when_shrunk_while_decoding(
        self, shape: tuple[int, int], size: int, scale: int, subsampling: str
    ) -> None:
        data = jpeg(waves(*shape), subsampling)
        box = [8, 16, shape[0] // 8 * 8, shape[1] // 8 * 8]
        assert dct_scale(box[2] - box[0], box[3] - box[1], size) == scale
        expected = plainly(simplejpeg.decode_jpeg(data), box, size, cv2.INTER_AREA)
        off = np.abs(rendered_jpeg(data, box, size).astype(int) - expected)
        # At 1/8, libjpeg repeats the halved colours of 4:2:2 where it has better for the others.
        coarse = subsampling == "422" and scale == 8
        assert off.mean() < (8 if coarse else 2)
        assert off.max() < (60 if coarse else 20)

    @pytest.mark.parametrize("box", [[3, 5, 326, 241], [7, 7, 333, 247], [0, 0, 329, 233]])
    @pytest.mark.parametrize(("size", "scale"), [(80, 2), (50, 4), (24, 8)])
    def test_is_off_by_less_than_one_pixel_of_the_shrunk_image(
        self, box: Box, size: int, scale: int
    ) -> None:
        ramp = np.repeat(np.linspace(0, 250, 333)[None, :, None], 247, axis=0)
        data = jpeg(np.repeat(ramp, 3, axis=2).astype(np.uint8))
        assert dct_scale(box[2] - box[0], box[3] - box[1], size) == scale
        expected = plainly(simplejpeg.decode_jpeg(data), box, size, cv2.INTER_AREA)
        off = np.abs(rendered_jpeg(data, box, size).astype(int) - expected)
        assert off.max() <= scale * 250 / 333 + 2

    @pytest.mark.parametrize("size", [24, 50, 90, 160])
    def test_flip_mirrors_left_to_right(self, size: int) -> None:
        data, box = jpeg(waves(320, 240)), [20, 10, 300, 230]
        plain, mirrored = (rendered_jpeg(data, box, size, flip=flip) for flip in (False, True))
        np.testing.assert_array_equal(mirrored, plain[:, ::-1])

    def test_a_box_of_the_very_size_is_copied(self) -> None:
        data = jpeg(waves(101, 77))
        for flip in (False, True):
            expected = simplejpeg.decode_jpeg(data)[10:42, 20:52]
            np.testing.assert_array_equal(
                rendered_jpeg(data, [20, 10, 52, 42], 32, flip=flip),
                expected[:, ::-1] if flip else expected,
            )

    @pytest.mark.parametrize("size", [20, 50])
    def test_a_grey_jpeg_has_three_equal_channels(self, size: int) -> None:
        file = io.BytesIO()
        Image.fromarray(waves(101, 77)).convert("L").save(file, "JPEG")
        shown = rendered_jpeg(memoryview(file.getvalue()), [0, 0, 77, 77], size)
        assert (shown == shown[:, :, :1]).all()
        assert shown.std() > 10

    def test_outside_the_image_it_is_mirrored(self) -> None:
        data = jpeg(waves(40, 30))
        expected = np.pad(simplejpeg.decode_jpeg(data), ((5, 5), (0, 0), (0, 0)), "reflect")
        np.testing.assert_array_equal(rendered_jpeg(data, [0, -5, 40, 35], 40), expected)

    def test_a_large_image_leaves_nothing_behind_for_a_small_one(self) -> None:
        small = jpeg(waves(33, 33))
        before = rendered_jpeg(small, [0, 0, 33, 33], 33)
        rendered_jpeg(jpeg(255 - waves(600, 500)), [0, 0, 600, 500], 400)
        np.testing.assert_array_equal(rendered_jpeg(small, [0, 0, 33, 33], 33), before)

    def test_neighbours_in_the_batch_are_not_touched(self) -> None:
        batch = np.full((3, 24, 24, 3), 77, np.uint8)
        for flip in (False, True):
            render_jpeg(jpeg(waves(101, 77)), 101, 77, [0, 0, 77, 77], flip, batch[1])
        assert (batch[[0, 2]] == 77).all()
        assert (batch[1] != 77).any()


class TestRaw:
    @pytest.mark.parametrize("flip", [False, True])
    def test_an_image_of_the_very_size_is_copied(self, flip: bool) -> None:
        pixels = waves(32, 32)
        expected = pixels[:, ::-1] if flip else pixels
        np.testing.assert_array_equal(rendered_raw(pixels, [0, 0, 32, 32], 32, flip=flip), expected)

    @pytest.mark.parametrize(("box", "size"), [([0, 0, 45, 31], 16), ([7, 3, 30, 29], 48)])
    def test_equals_crop_and_linear_resize(self, box: Box, size: int) -> None:
        pixels = waves(45, 31)
        expected = plainly(pixels, box, size)
        np.testing.assert_array_equal(rendered_raw(pixels, box, size), expected)
        np.testing.assert_array_equal(rendered_raw(pixels, box, size, flip=True), expected[:, ::-1])

    @pytest.mark.parametrize(
        "box",
        [[-4, -4, 28, 28], [4, 4, 36, 36], [-4, 3, 28, 35], [0, -4, 32, 28], [-31, -31, 1, 1]],
    )
    def test_outside_the_image_it_is_mirrored(self, box: Box) -> None:
        pixels = waves(32, 32)
        around = np.pad(pixels, ((31, 31), (31, 31), (0, 0)), "reflect")
        left, top, right, bottom = (edge + 31 for edge in box)
        np.testing.assert_array_equal(rendered_raw(pixels, box, 32), around[top:bottom, left:right])

    @pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (2, 3)])
    def test_the_smallest_images_are_shown(self, shape: tuple[int, int]) -> None:
        pixels = np.full((shape[1], shape[0], 3), 9, np.uint8)
        side = min(shape)
        assert (rendered_raw(pixels, [-1, -1, side + 1, side + 1], 8) == 9).all()


def test_raw_pixels_that_are_much_larger_are_averaged_not_skipped() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (448, 448, 3), dtype=np.uint8)
    out = np.empty((56, 56, 3), dtype=np.uint8)
    render_raw(memoryview(noise.tobytes()), 448, 448, [0, 0, 448, 448], False, out)
    assert out.std() < 12
