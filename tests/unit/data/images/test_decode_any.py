"""Every kind of file a folder may hold has one outcome: upright RGB pixels, or a reason."""

from __future__ import annotations

import io
import resource
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from samples import picture
from stoker.data.images.decode_any import Pixels, Rejected, inspect

WIDTH, HEIGHT = 36, 28


def photo() -> Image.Image:
    """A smooth picture without symmetry, so that every wrong turn shows."""
    down, across = np.mgrid[0:HEIGHT, 0:WIDTH]
    return Image.fromarray(
        np.stack([across * 6, down * 8, (across + down) * 3], axis=2).astype(np.uint8)
    )


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pillow_rgb(data: bytes) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def grey_ramp() -> Image.Image:
    return Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))


def rgba() -> Image.Image:
    """Left third clear, middle third half clear, right third solid; all pure red."""
    alpha = np.repeat([0, 128, 255], 4)
    pixels = np.zeros((5, 12, 4), dtype=np.uint8)
    pixels[:, :, 0], pixels[:, :, 3] = 255, alpha
    return Image.fromarray(pixels, "RGBA")


def red_over_white() -> Pixels:
    pixels = np.full((5, 12, 3), 255, dtype=np.uint8)
    pixels[:, :, 1:] = np.repeat([255, 127, 0], 4)[:, None]
    return pixels


def clear_palette() -> bytes:
    """Palette entry 0 is red and clear, entry 1 blue and solid."""
    image = Image.fromarray(np.array([[0, 1], [1, 0]], dtype=np.uint8), "P")
    image.putpalette([255, 0, 0, 0, 0, 255])
    return saved(image, "PNG", transparency=0)


def repeated(grey: Any) -> Pixels:
    return np.repeat(np.asarray(grey, dtype=np.uint8)[:, :, None], 3, axis=2)


def ycck() -> bytes:
    """A CMYK JPEG whose Adobe marker says that its colours are YCCK."""
    data = bytearray(saved(photo().convert("CMYK"), "JPEG"))
    data[data.index(b"Adobe") + 11] = 2
    return bytes(data)


def with_stray_bytes(marker: bytes, count: int) -> bytes:
    """A JPEG with bytes that belong to nothing before one of its markers."""
    before, after = saved(photo(), "JPEG").split(marker, 1)
    return before + bytes(count) + marker + after


def animated(first: Image.Image, kind: str, **options: Any) -> bytes:
    others = [Image.new("RGB", first.size, colour) for colour in ("red", "blue")]
    return saved(first, kind, save_all=True, append_images=others, **options)


RAMP_16 = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)
PLAIN = saved(photo(), "JPEG")
GREY_JPEG = saved(photo().convert("L"), "JPEG")
PROGRESSIVE = saved(photo(), "JPEG", progressive=True)
CMYK = saved(photo().convert("CMYK"), "JPEG")
PALETTE_GIF = saved(photo().quantize(16), "GIF")

DECODED: dict[str, tuple[bytes, Pixels, bool]] = {
    # what the file is: (its bytes, the pixels it becomes, whether its bytes may be stored)
    "baseline jpeg": (PLAIN, pillow_rgb(PLAIN), True),
    "grey jpeg": (GREY_JPEG, pillow_rgb(GREY_JPEG), True),
    "progressive jpeg": (PROGRESSIVE, pillow_rgb(PROGRESSIVE), False),
    "cmyk jpeg": (CMYK, pillow_rgb(CMYK), False),
    "ycck jpeg": (ycck(), pillow_rgb(ycck()), False),
    "jpeg with stray bytes before its tables": (
        with_stray_bytes(b"\xff\xc4", 4),
        pillow_rgb(PLAIN),
        False,
    ),
    "jpeg with stray bytes before its end": (
        with_stray_bytes(b"\xff\xd9", 500),
        pillow_rgb(PLAIN),
        False,
    ),
    "jpeg with more bytes after its end": (PLAIN + b"\0" * 999, pillow_rgb(PLAIN), True),
    "png (named .jpg or not: names are never looked at)": (
        saved(photo(), "PNG"),
        np.asarray(photo()),
        False,
    ),
    "grey png": (saved(grey_ramp(), "PNG"), repeated(grey_ramp()), False),
    "black-and-white png": (
        saved(grey_ramp().point(lambda v: 255 * (v > 99), mode="1"), "PNG"),
        repeated(255 * (np.asarray(grey_ramp()) > 99)),
        False,
    ),
    "palette png": (
        saved(photo().quantize(16), "PNG"),
        np.asarray(photo().quantize(16).convert("RGB")),
        False,
    ),
    "palette png with a clear colour over white": (
        clear_palette(),
        np.array([[[255, 255, 255], [0, 0, 255]], [[0, 0, 255], [255, 255, 255]]], np.uint8),
        False,
    ),
    "rgba png over white": (saved(rgba(), "PNG"), red_over_white(), False),
    "rgba webp over white": (saved(rgba(), "WEBP", lossless=True), red_over_white(), False),
    "grey and alpha png over white": (
        saved(Image.merge("LA", [grey_ramp(), Image.new("L", (16, 16), 0)]), "PNG"),
        np.full((16, 16, 3), 255, np.uint8),
        False,
    ),
    "16-bit grey png": (saved(Image.fromarray(RAMP_16), "PNG"), repeated(grey_ramp()), False),
    "16-bit grey tiff": (saved(Image.fromarray(RAMP_16), "TIFF"), repeated(grey_ramp()), False),
    "bmp": (saved(photo(), "BMP"), np.asarray(photo()), False),
    "tiff": (saved(photo(), "TIFF"), np.asarray(photo()), False),
    "lossless webp": (saved(photo(), "WEBP", lossless=True), np.asarray(photo()), False),
    "gif": (PALETTE_GIF, pillow_rgb(PALETTE_GIF), False),
    "animated gif, first frame": (
        animated(photo().quantize(16), "GIF"),
        np.asarray(photo().quantize(16).convert("RGB")),
        False,
    ),
    "animated webp, first frame": (
        animated(photo(), "WEBP", lossless=True),
        np.asarray(photo()),
        False,
    ),
    "tiff of three pages, the first": (animated(photo(), "TIFF"), np.asarray(photo()), False),
    "two-picture jpeg of a 3D camera, the first": (
        animated(photo(), "MPO"),
        pillow_rgb(animated(photo(), "MPO")),
        True,
    ),
    "one pixel": (
        saved(Image.new("RGB", (1, 1), (9, 8, 7)), "PNG"),
        np.uint8([[[9, 8, 7]]]),
        False,
    ),
}


@pytest.mark.parametrize("name", DECODED)
def test_what_each_kind_of_image_becomes(name: str) -> None:
    data, pixels, kept = DECODED[name]
    found = inspect(data)
    assert found.pixels.shape == pixels.shape
    assert found.pixels.dtype == np.uint8
    np.testing.assert_array_equal(found.pixels, pixels)
    assert found.kept == kept
    assert found.orientation == 1


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_claiming(width: int, height: int) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")


def jpeg_claiming(width: int, height: int) -> bytes:
    data = bytearray(PLAIN)
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def gif_claiming(width: int, height: int) -> bytes:
    data = bytearray(PALETTE_GIF)
    data[6:10] = struct.pack("<HH", width, height)
    return bytes(data)


REJECTED: dict[str, tuple[bytes, str]] = {
    # what the file is: (its bytes, a word of the reason)
    "zero bytes": (b"", "empty"),
    "one byte": (b"\xff", "not an image"),
    "text": (b"label,path\n1,cat.jpg\n" * 50, "not an image"),
    "a web page saved as an image": (b"<!DOCTYPE html><html>404</html>", "not an image"),
    "heic named .jpg": (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(500), "not an image"),
    "noise": (np.random.default_rng(0).bytes(2000), "not an image"),
    "jpeg of nothing but its first marker": (PLAIN[:2], "not an image|damaged"),
    "png without pixels": (saved(photo(), "PNG")[:60], "damaged"),
    "png cut in the middle": (saved(picture(0, 0, (64, 64)), "PNG")[:6000], "damaged"),
    "gif cut in the middle": (PALETTE_GIF[: len(PALETTE_GIF) // 2], "damaged"),
    "jpeg with zeros in its middle": (PLAIN[:-200] + bytes(200), "damaged"),
    "png bomb": (png_claiming(30_000, 30_000), "too many pixels"),
    "png bomb that Pillow only warns of": (png_claiming(12_000, 12_000), "too many pixels"),
    "jpeg bomb": (jpeg_claiming(30_000, 30_000), "too many pixels"),
    "gif bomb": (gif_claiming(30_000, 30_000), "too many pixels"),
}


@pytest.mark.parametrize("name", REJECTED)
def test_what_is_rejected_and_why(name: str) -> None:
    data, reason = REJECTED[name]
    with pytest.raises(Rejected, match=reason):
        inspect(data)


@pytest.mark.parametrize("claim", [png_claiming, jpeg_claiming, gif_claiming])
def test_a_bomb_is_rejected_by_its_header_without_allocating(
    claim: Callable[[int, int], bytes],
) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Rejected, match="too many pixels"):
        inspect(claim(30_000, 30_000))
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after_kib - before_kib < 64 << 10


@pytest.mark.parametrize("tenth", range(10))
@pytest.mark.parametrize("kind", ["baseline", "progressive", "grey"])
def test_a_truncated_jpeg_is_never_taken_for_a_whole_one(kind: str, tenth: int) -> None:
    options = {"progressive": kind == "progressive"}
    image = picture(1, 2, (120, 90)).convert("L" if kind == "grey" else "RGB")
    whole = saved(image, "JPEG", **options)
    with pytest.raises(Rejected):
        inspect(whole[: len(whole) * tenth // 10])


@pytest.mark.parametrize("missing", [1, 2, 3, 4, 10, 100])
def test_a_jpeg_without_its_last_bytes_is_rejected_or_complete(missing: int) -> None:
    whole = saved(picture(1, 2, (120, 90)), "JPEG")
    try:
        found = inspect(whole[:-missing])
    except Rejected as reason:
        assert "damaged" in str(reason)
    else:
        np.testing.assert_array_equal(found.pixels, inspect(whole).pixels)


@pytest.mark.parametrize("missing", [1, 50, 99, 100])
def test_a_jpeg_that_lost_only_bytes_after_its_end_is_whole(missing: int) -> None:
    found = inspect((PLAIN + b"\0" * 100)[:-missing])
    np.testing.assert_array_equal(found.pixels, pillow_rgb(PLAIN))


ORIENTED = {"JPEG": {}, "PNG": {}, "TIFF": {}, "WEBP": {"lossless": True}}


def oriented(orientation: int, kind: str) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(photo(), kind, exif=exif, **ORIENTED[kind])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ORIENTED)
def test_every_exif_orientation_is_applied_once(kind: str, orientation: int) -> None:
    data = oriented(orientation, kind)
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    found = inspect(data)
    assert found.orientation == orientation
    assert found.pixels.shape == (upright.height, upright.width, 3)
    np.testing.assert_array_equal(found.pixels, np.asarray(upright.convert("RGB")))


def test_only_an_upright_jpeg_is_kept_as_it_is() -> None:
    assert [inspect(oriented(orientation, "JPEG")).kept for orientation in range(1, 9)] == [
        True,
        *[False] * 7,
    ]


EXIF_HEAD = b"Exif\0\0II*\0\x08\0\0\0"
BROKEN_EXIF = {
    "no block at all": b"Exif\0\0",
    "noise": b"Exif\0\0" + np.random.default_rng(3).bytes(64),
    "a list that leaves the block": EXIF_HEAD + struct.pack("<H", 60_000),
    "a list that begins beyond its end": b"Exif\0\0II*\0\xff\xff\xff\x7f",
    "orientation 0": EXIF_HEAD + struct.pack("<HHHII", 1, 0x0112, 3, 1, 0) + bytes(4),
    "orientation 9": EXIF_HEAD + struct.pack("<HHHII", 1, 0x0112, 3, 1, 9) + bytes(4),
    "orientation as text": EXIF_HEAD + struct.pack("<HHHI4s", 1, 0x0112, 2, 4, b"six\0") + bytes(4),
}


@pytest.mark.parametrize("name", BROKEN_EXIF)
def test_a_jpeg_with_broken_exif_is_taken_as_it_lies(name: str) -> None:
    block = BROKEN_EXIF[name]
    data = PLAIN[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + PLAIN[2:]
    found = inspect(data)
    assert found.orientation == 1
    np.testing.assert_array_equal(found.pixels, pillow_rgb(PLAIN))


FUZZED = {
    "baseline jpeg": PLAIN,
    "progressive jpeg": PROGRESSIVE,
    "cmyk jpeg": CMYK,
    "turned jpeg": oriented(6, "JPEG"),
    "png": saved(photo(), "PNG"),
    "gif": PALETTE_GIF,
    "webp": saved(photo(), "WEBP"),
    "tiff": saved(photo(), "TIFF"),
    "bmp": saved(photo(), "BMP"),
}


@pytest.mark.parametrize("name", FUZZED)
def test_whatever_bytes_are_damaged_the_outcome_is_an_image_or_a_reason(name: str) -> None:
    whole = FUZZED[name]
    for number in range(150):
        random = np.random.default_rng(number)
        data = bytearray(whole)
        for place in random.integers(0, len(data), 1 + number % 5):
            data[place] = random.integers(256)
        try:
            found = inspect(bytes(data))
        except Rejected as reason:
            assert str(reason)
        else:
            assert found.pixels.dtype == np.uint8
            assert found.pixels.shape[2:] == (3,)
            assert found.pixels.flags.c_contiguous
