"""Large metadata is not stored, whatever segment holds it, and the pixels stay the same."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image, PngImagePlugin

from samples import picture
from stoker.data.images.decode_any import inspect
from stoker.data.images.encode import MOST_METADATA, Storage, encode, fit
from stoker.data.images.jpeg_metadata import without_metadata

SEGMENTS = 40
"""Of 64 kB each."""
pytestmark = pytest.mark.exact


def saved(form: str = "JPEG", mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    picture(1, 1, (120, 90)).convert(mode).save(file, form, **options)
    return file.getvalue()


def segments(marker: int, body: bytes = b"", count: int = SEGMENTS) -> bytes:
    body = body.ljust(65533, b"x")
    return (bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2) + body) * count


def after_start(data: bytes, more: bytes) -> bytes:
    return data[:2] + more + data[2:]


def before_scan(data: bytes, more: bytes) -> bytes:
    at = data.index(b"\xff\xda")
    return data[:at] + more + data[at:]


def repeated_tables(data: bytes) -> bytes:
    begin = data.index(b"\xff\xdb")
    end = begin + 2 + int.from_bytes(data[begin + 2 : begin + 4])
    return data[:begin] + data[begin:end] * 4_000 + data[end:]


JFIF = b"JFIF\0\1\1\0\0\1\0\1\0\0"
ADOBE = b"Adobe\0\x64\0\0\0\0\1"
LARGE: dict[str, Callable[[], bytes]] = {
    "comments": lambda: after_start(saved(), segments(0xFE)),
    "comments before the scan": lambda: before_scan(saved(), segments(0xFE)),
    "EXIF": lambda: after_start(saved(), segments(0xE1, b"Exif\0\0")),
    "XMP": lambda: after_start(saved(), segments(0xE1, b"http://ns.adobe.com/xap/1.0/\0")),
    "a profile": lambda: saved(icc_profile=bytes(range(256)) * 8000),
    "any other APP segment": lambda: after_start(saved(), segments(0xEC)),
    "JFIF many times": lambda: after_start(saved(), segments(0xE0, JFIF)),
    "Adobe many times": lambda: before_scan(saved(), segments(0xEE, ADOBE)),
    "bytes behind the end": lambda: saved() + b"archive" * 400_000,
    "another JPEG behind the end": lambda: saved() + saved() * 200,
    "padding": lambda: before_scan(saved(), b"\xff" * 250_000),
    "tables many times": lambda: repeated_tables(saved()),
    "comments in grey": lambda: after_start(saved(mode="L"), segments(0xFE)),
    "comments in a progressive one": lambda: before_scan(saved(progressive=True), segments(0xFE)),
}


def stored(data: bytes, codec: str) -> bytes:
    storage, image = Storage(codec), inspect(data)
    return encode(data, image, fit(image.pixels, storage), storage)


@pytest.mark.parametrize("codec", ["jpeg", "original"])
@pytest.mark.parametrize("name", LARGE)
def test_large_metadata_is_not_stored(name: str, codec: str) -> None:
    data = LARGE[name]()
    assert len(data) > 200_000
    result, pixels = stored(data, codec), inspect(data).pixels
    assert len(result) <= pixels.nbytes + MOST_METADATA
    converted = "progressive" in name and codec == "jpeg"
    if not converted and name not in ("tables many times", "Adobe many times"):
        assert np.array_equal(simplejpeg.decode_jpeg(result, colorspace="RGB"), pixels)


@pytest.mark.parametrize(
    "data",
    [
        saved(),
        saved(comment=b"c" * 50_000),
        saved(icc_profile=b"p" * 60_000),
        saved() + b"\0" * 60_000,
    ],
)
def test_ordinary_metadata_stays(data: bytes) -> None:
    for codec in ("jpeg", "original"):
        assert stored(data, codec) == data


def test_a_png_leaves_its_text_behind() -> None:
    text = PngImagePlugin.PngInfo()
    text.add_text("note", "n" * 900_000)
    for codec in ("jpeg", "original"):
        assert len(stored(saved("PNG", pnginfo=text), codec)) < 50_000


@pytest.mark.parametrize("form", ["WEBP", "TIFF"])
def test_so_do_other_formats(form: str) -> None:
    exif = Image.Exif()
    exif[0x010E] = "n" * 60_000
    data = saved(form, exif=exif)
    assert len(data) > 60_000
    for codec in ("jpeg", "original"):
        assert len(stored(data, codec)) < 50_000


@pytest.mark.parametrize("end", [2, 10, 300, -2])
def test_a_file_without_an_end_has_no_answer(end: int) -> None:
    assert without_metadata(saved()[:end]) is None
