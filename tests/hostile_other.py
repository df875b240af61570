"""PNG, GIF, WebP, TIFF and BMP files as an attacker or a bad disk would make them."""

from __future__ import annotations

import functools
import io
import struct
import zipfile
import zlib
from typing import Any

import numpy as np
from PIL import Image

import hostile_jpeg as jp
from hostile_jpeg import photo, saved


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_with(*chunks: bytes) -> bytes:
    """A good PNG with chunks put right behind its header."""
    data = saved(photo(), "PNG")
    return data[:33] + b"".join(chunks) + data[33:]


def png_of_zeros(width: int, height: int, depth: int = 8, colour: int = 2) -> bytes:
    """A true PNG of that size, as small as it gets, made without its pixels in memory."""
    channels = {0: 1, 2: 3, 6: 4}[colour]
    row = bytes(1 + (width * channels * depth + 7) // 8)
    packer = zlib.compressobj(9)
    pixels = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    )


@functools.cache
def text_bomb(kind: bytes) -> bytes:
    """Text that takes 200 MB unpacked."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(200)) + packer.flush()
    head = {b"zTXt": b"Comment\0\0", b"iTXt": b"Comment\0\1\0\0\0", b"iCCP": b"icc\0\0"}[kind]
    return png_with(chunk(kind, head + packed))


def many_texts() -> bytes:
    """A hundred texts that take a megabyte each."""
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(bytes((1 << 20) - 1), 9))
    return png_with(*[text] * 100)


def interlaced_png() -> bytes:
    """Seven passes (Adam7), by hand: Pillow reads but does not write it."""
    pixels = np.asarray(photo())
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2)]
    passes += [(0, 1, 2, 2), (1, 0, 2, 1)]
    rows = b"".join(
        b"\0" + row.tobytes()
        for top, left, down, across in passes
        for row in pixels[top::down, left::across]
    )
    header = struct.pack(">IIBBBBB", jp.WIDTH, jp.HEIGHT, 8, 2, 0, 0, 1)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def rgb_48_png() -> bytes:
    wide = (np.asarray(photo()).astype(np.uint16) * 257).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in wide)
    header = struct.pack(">IIBBBBB", jp.WIDTH, jp.HEIGHT, 16, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def bad_crc_png() -> bytes:
    data = saved(photo(), "PNG")
    place = data.index(b"IDAT") + 10
    return jp.patched(data, place, bytes([data[place] ^ 1]))


def rows_missing_png() -> bytes:
    """A header that claims ten times the rows there are; all checksums are right."""
    data = saved(photo(), "PNG")
    header = data[16:20] + struct.pack(">I", 10 * jp.HEIGHT) + data[24:29]
    return data[:8] + chunk(b"IHDR", header) + data[33:]


def grey_16(kind: str) -> bytes:
    grey = np.asarray(photo().convert("L")).astype(np.uint16) * 257
    return saved(Image.fromarray(grey), kind)


def palette(kind: str, **options: Any) -> bytes:
    return saved(photo().quantize(16), kind, **options)


def clear(mode: str, kind: str, **options: Any) -> bytes:
    image = photo().convert(mode[:-1])
    image.putalpha(Image.new("L", image.size, 100))
    assert image.mode == mode
    return saved(image, kind, **options)


def animated(kind: str, **options: Any) -> bytes:
    others = [Image.new("RGB", (jp.WIDTH, jp.HEIGHT), colour) for colour in ("red", "blue")]
    return saved(photo(), kind, save_all=True, append_images=others, **options)


def polyglot_zip() -> bytes:
    """A JPEG that is an archive too."""
    archive = io.BytesIO(jp.jpeg())
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("../../evil.jpg", jp.jpeg())
    return archive.getvalue()


def gif_script() -> bytes:
    """`GIF89a/*...*/=1;alert(1)`: a picture to one reader, a script to another."""
    data = bytearray(palette("GIF"))
    return bytes(data) + b"*/=1;alert(document.cookie);//"


def tiff_in_a_ring() -> bytes:
    """The list of pages leads back to the first."""
    data = bytearray(saved(photo(), "TIFF"))
    first = int.from_bytes(data[4:8], "little")
    entries = int.from_bytes(data[first : first + 2], "little")
    data[first + 2 + 12 * entries : first + 6 + 12 * entries] = data[4:8]
    return bytes(data)


def tiff_entry(tag: int, value: int, **options: Any) -> bytes:
    """One number of a TIFF's first list blown up."""
    data = bytearray(saved(photo(), "TIFF", **options))
    first = int.from_bytes(data[4:8], "little")
    for place in range(first + 2, first + 2 + 12 * data[first], 12):
        if int.from_bytes(data[place : place + 2], "little") == tag:
            data[place + 2 : place + 4] = struct.pack("<H", 4)
            data[place + 8 : place + 12] = struct.pack("<I", value)
    return bytes(data)


def bmp_claiming(width: int, height: int) -> bytes:
    return jp.patched(saved(photo(), "BMP"), 18, struct.pack("<ii", width, height))


def gif_claiming(width: int, height: int) -> bytes:
    return jp.patched(palette("GIF"), 6, struct.pack("<HH", width, height))


def webp(**options: Any) -> bytes:
    return saved(photo(), "WEBP", **options)


def heic() -> bytes:
    return b"\0\0\0\x18ftypheic\0\0\0\0mif1heic\0\0\0\x08meta" + bytes(500)


def jpeg_of(width: int, height: int, **options: Any) -> bytes:
    return saved(photo(width, height), "JPEG", **options)
