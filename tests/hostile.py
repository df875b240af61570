"""What an attacker or an unlucky user puts into a folder, and what becomes of it.

All files are made by code. `found` is the row of docs/packing.md that documents an outcome; the
table there and the lists here are held together by a test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial as later
from typing import Any

import hostile_jpeg as jp
import hostile_other as ot
from hostile_jpeg import HEIGHT, WIDTH, photo, saved

KEPT, CONVERTED = "kept", "converted"
UNKNOWN = "rejected: not an image of a known kind"
DAMAGED = "rejected: damaged"
TOO_MANY = "rejected: too many pixels"

Make = Callable[[], bytes]


@dataclass(frozen=True)
class Hostile:
    """A file, and what becomes of it."""

    name: str
    make: Make
    outcome: str
    """kept, converted, or "rejected: " and how the reason begins."""
    found: str
    size: tuple[int, int] = (WIDTH, HEIGHT)
    """Stored width and height, where it is accepted."""


def several(found: str, outcome: str, files: dict[str, Make], **more: Any) -> list[Hostile]:
    """Files of one row of the table."""
    return [Hostile(name, make, outcome, found, **more) for name, make in files.items()]


def orientations(turned: bool) -> dict[str, Make]:
    numbers = (5, 6, 7, 8) if turned else (2, 3, 4)
    return {f"orientation-{number}.jpg": later(jp.oriented, number) for number in numbers}


def cuts(kind: str, whole: Make, tenths: range) -> dict[str, Make]:
    def cut(tenth: int) -> bytes:
        data = whole()
        return data[: len(data) * tenth // 10]

    return {f"cut-{tenth}-tenths.{kind}": later(cut, tenth) for tenth in tenths}


PLAIN = "baseline JPEG, upright, within `--max-side` and `--quality`, or up to 128 pixels long"
FINER = "the same of a higher quality"
RIDERS = "the same with more inside or behind it: ICC, broken EXIF, archives, web pages"
TURNED = "JPEG that its EXIF turns, progressive JPEG, JPEG with stray bytes, CMYK, YCCK"
RARE = "JPEG of unusual sampling, or with pieces of an ICC profile missing"
SHRUNK = "longer side over `--max-side`"
OTHERS = "PNG, WebP, GIF, BMP, TIFF, by content and not by name"
MOVING = "animation, several pages"
WRONG = "damage in a JPEG's scan after which the code falls into step again"
EMPTY = "empty file"
LARGE = "over 100 million pixels, over 256 MiB"
STRANGE = "no image of these kinds, 12-bit JPEG, header that makes no sense"
BROKEN = "truncated or damaged image, PNG with more than 1 MiB of text"
ODD = "lossless or hierarchical JPEG"
SCANS = "JPEG of over 1000 scans, or of so many that it would take minutes"

FILES: list[Hostile] = [
    Hostile(
        "finer.jpg",
        lambda: saved(photo().resize((200, 160)), "JPEG", quality=98),
        CONVERTED,
        FINER,
        (200, 160),
    ),
    *several(
        PLAIN,
        KEPT,
        {
            "plain.jpg": jp.jpeg,
            "grey.jpg": lambda: saved(photo().convert("L"), "JPEG"),
            "restarts.jpg": jp.with_restarts,
            "no-huffman-tables.jpg": jp.without_tables,
            "extended-huffman.jpg": later(jp.other_frame, 0xC1),
            "orientation-1.jpg": later(jp.oriented, 1),
            "jpeg-named.png": jp.jpeg,
        },
    ),
    Hostile("one-pixel.jpg", lambda: saved(photo(1, 1), "JPEG"), KEPT, PLAIN, (1, 1)),
    Hostile("sampling-4x1.jpg", later(jp.dc_only, (0x41, 0x11, 0x11)), KEPT, PLAIN, (96, 8)),
    *several(
        RIDERS,
        KEPT,
        {
            "icc.jpg": jp.icc,
            "thumbnail.jpg": jp.nested,
            "exif-empty.jpg": later(jp.with_exif, b""),
            "exif-noise.jpg": later(jp.with_exif, bytes(range(255, 0, -1))),
            "exif-leaves-its-block.jpg": later(jp.with_exif, b"II*\0\x08\0\0\0\xff\xff"),
            "zip-behind.jpg": ot.polyglot_zip,
            "html-behind.jpg": lambda: jp.jpeg() + b"<script>alert(1)</script>" * 40,
            "two-pictures.jpg": later(ot.animated, "MPO"),
        },
    ),
    *several(
        TURNED,
        CONVERTED,
        {
            **orientations(turned=False),
            "progressive.jpg": later(jp.jpeg, progressive=True),
            "cmyk.jpg": lambda: saved(photo().convert("CMYK"), "JPEG"),
            "ycck.jpg": jp.ycck,
            "huge-app-segments.jpg": jp.huge_segments,
            "zeros-before-end.jpg": lambda: jp.jpeg()[:-2] + bytes(300) + jp.EOI,
        },
    ),
    *several(TURNED, CONVERTED, orientations(turned=True), size=(HEIGHT, WIDTH)),
    Hostile("long.jpg", lambda: saved(photo(65500, 1), "JPEG"), CONVERTED, SHRUNK, (500, 1)),
    Hostile("tall.jpg", lambda: saved(photo(1, 65500), "JPEG"), CONVERTED, SHRUNK, (1, 500)),
    Hostile("long.png", lambda: saved(photo(70000, 2), "PNG"), CONVERTED, SHRUNK, (500, 1)),
    Hostile(
        "small-on-a-large-screen.gif",
        later(ot.gif_claiming, 4000, 4000),
        CONVERTED,
        SHRUNK,
        (500,) * 2,
    ),
    *several(
        OTHERS,
        CONVERTED,
        {
            "png-named.jpg": lambda: saved(photo(), "PNG"),
            "gif-named.tiff": later(ot.palette, "GIF"),
            "16-bit.png": later(ot.grey_16, "PNG"),
            "16-bit.tiff": later(ot.grey_16, "TIFF"),
            "48-bit.png": ot.rgb_48_png,
            "palette.png": later(ot.palette, "PNG"),
            "palette-clear.png": later(ot.palette, "PNG", transparency=3),
            "palette-clear.gif": later(ot.palette, "GIF", transparency=3),
            "rgba.png": later(ot.clear, "RGBA", "PNG"),
            "grey-alpha.png": later(ot.clear, "LA", "PNG"),
            "rgba.webp": later(ot.clear, "RGBA", "WEBP"),
            "interlaced.png": ot.interlaced_png,
            "script-behind.gif": ot.gif_script,
            "upside-down.bmp": later(ot.bmp_claiming, WIDTH, -HEIGHT),
            "rows-a-strip.tiff": later(ot.tiff_entry, 278, 1 << 30),
        },
    ),
    Hostile("one-pixel.png", lambda: saved(photo(1, 1), "PNG"), CONVERTED, OTHERS, (1, 1)),
    *several(
        MOVING,
        CONVERTED,
        {
            "animated.gif": later(ot.animated, "GIF"),
            "animated.webp": later(ot.animated, "WEBP"),
            "animated.png": later(ot.animated, "PNG"),
            "pages.tiff": later(ot.animated, "TIFF"),
            "pages-in-a-ring.tiff": ot.tiff_in_a_ring,
        },
    ),
    Hostile("scan-flipped-9.jpg", later(jp.flipped, 0.9), KEPT, WRONG),
    Hostile("zero-bytes.jpg", lambda: b"", "rejected: empty", EMPTY),
    *several(
        LARGE,
        TOO_MANY,
        {
            "bomb.png": later(ot.png_of_zeros, 30_000, 30_000, 1, 0),
            "bomb.jpg": later(jp.claiming, 30_000, 30_000),
            "bomb.gif": later(ot.gif_claiming, 65_535, 65_535),
            "bomb.bmp": later(ot.bmp_claiming, 1 << 30, 1 << 30),
            "negative.bmp": later(ot.bmp_claiming, -5, 5),
            "bomb.tiff": later(ot.tiff_entry, 256, 1 << 30),
        },
    ),
    *several(
        STRANGE,
        UNKNOWN,
        {
            "heic.jpg": ot.heic,
            "photo.heic": ot.heic,
            "page.jpg": lambda: b"<!DOCTYPE html><html>404 not found</html>",
            "12-bit.jpg": later(jp.precision, 12),
            "samples-a-pixel.tiff": later(ot.tiff_entry, 277, 200),
            "no-pixels.bmp": later(ot.bmp_claiming, 0, 0),
        },
    ),
    *several(
        BROKEN,
        DAMAGED,
        {
            **cuts("jpg", jp.noisy_jpeg, range(1, 10)),
            "cut-in-its-last-bytes.jpg": lambda: jp.noisy_jpeg()[:-3],
            **cuts("webp", ot.webp, range(1, 10, 3)),
            **cuts("png", lambda: saved(photo(), "PNG"), range(4, 10, 2)),
            **cuts("gif", later(ot.palette, "GIF"), range(4, 10, 2)),
            **cuts("bmp", lambda: saved(photo(), "BMP"), range(4, 10, 2)),
            "restarts-renumbered.jpg": jp.renumbered_restarts,
            "restarts-swapped.jpg": jp.swapped_restarts,
            "restart-lost.jpg": jp.lost_restart,
            "two-frames.jpg": jp.two_frames,
            "scan-again-and-again.jpg": later(jp.many_scans, 50),
            "progressive-header.jpg": later(jp.other_frame, 0xC2),
            "claims-more-rows.jpg": later(jp.claiming, WIDTH, 4000),
            "claims-more.bmp": later(ot.bmp_claiming, 9000, 9000),
            "strip-elsewhere.tiff": later(ot.tiff_entry, 273, 1 << 31),
            "scan-flipped-3.jpg": later(jp.flipped, 0.3, 3),
            "scan-flipped-5.jpg": later(jp.flipped, 0.5, 10),
            "arithmetic-header.jpg": later(jp.other_frame, 0xC9),
            "sampling-zero.jpg": later(jp.sampling, (0, 0x11, 0x11)),
            "bad-checksum.png": ot.bad_crc_png,
            "rows-missing.png": ot.rows_missing_png,
            "text-bomb.png": later(ot.text_bomb, b"zTXt"),
            "unicode-bomb.png": later(ot.text_bomb, b"iTXt"),
            "profile-bomb.png": later(ot.text_bomb, b"iCCP"),
            "many-texts.png": ot.many_texts,
        },
    ),
    *several(
        ODD,
        DAMAGED,
        {
            "lossless.jpg": later(jp.other_frame, 0xC3),
            "hierarchical.jpg": later(jp.other_frame, 0xC5),
        },
    ),
    Hostile("too-many-scans.jpg", later(jp.many_scans, 1500), "rejected: too many scans", SCANS),
    Hostile("icc-pieces.jpg", jp.broken_icc, CONVERTED, RARE),
    Hostile("sampling-3x1.jpg", later(jp.dc_only, (0x31, 0x11, 0x11)), CONVERTED, RARE, (72, 8)),
    Hostile("sampling-1x3.jpg", later(jp.dc_only, (0x13, 0x11, 0x11)), CONVERTED, RARE, (24, 24)),
    Hostile("sampling-odd.jpg", later(jp.dc_only, (0x11, 0x21, 0x21)), CONVERTED, RARE, (48, 8)),
]
