"""Valid files, damaged by a seed: the same number always gives the same damaged file."""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable

import numpy as np
from PIL import Image

import hostile_jpeg as jp
from hostile_jpeg import saved

Chance = np.random.Generator
LIMITS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)


def picture(number: int) -> Image.Image:
    """A small picture with some detail; 16 to 40 pixels a side."""
    chance = np.random.default_rng([number, 99])
    width, height = chance.integers(16, 41, 2).tolist()
    noise = chance.normal(0, 25, (height, width, 3))
    pixels = np.asarray(jp.photo(width, height)) + noise
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def wide(number: int) -> Image.Image:
    return Image.fromarray(np.asarray(picture(number).convert("L")).astype(np.uint16) * 257)


def clear(number: int) -> Image.Image:
    image = picture(number)
    image.putalpha(image.convert("L"))
    return image


def turned(number: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 2 + number % 7
    return saved(picture(number), "JPEG", exif=exif)


def moving(number: int, kind: str) -> bytes:
    others = [picture(number).rotate(angle) for angle in (90, 180)]
    return saved(picture(number), kind, save_all=True, append_images=others)


def palette(number: int) -> Image.Image:
    return picture(number).quantize(16)


SOURCES: dict[str, list[Callable[[int], bytes]]] = {
    # suffix: ways to make a valid file of that kind
    "jpg": [
        lambda n: saved(picture(n), "JPEG"),
        lambda n: saved(picture(n), "JPEG", subsampling=0, restart_marker_blocks=2),
        lambda n: saved(picture(n).convert("L"), "JPEG"),
        lambda n: saved(picture(n).convert("CMYK"), "JPEG"),
        turned,
    ],
    "jpeg": [
        lambda n: saved(picture(n), "JPEG", progressive=True),
        lambda n: saved(picture(n).convert("L"), "JPEG", progressive=True, quality=95),
    ],
    "png": [
        lambda n: saved(picture(n), "PNG"),
        lambda n: saved(palette(n), "PNG", transparency=3),
        lambda n: saved(wide(n), "PNG"),
        lambda n: saved(clear(n), "PNG"),
    ],
    "webp": [
        lambda n: saved(picture(n), "WEBP"),
        lambda n: saved(clear(n), "WEBP", lossless=True),
        lambda n: moving(n, "WEBP"),
    ],
    "gif": [lambda n: saved(palette(n), "GIF"), lambda n: moving(n, "GIF")],
    "bmp": [lambda n: saved(picture(n), "BMP"), lambda n: saved(palette(n), "BMP")],
    "tiff": [
        lambda n: saved(picture(n), "TIFF"),
        lambda n: saved(picture(n), "TIFF", compression="tiff_lzw"),
        lambda n: saved(picture(n), "TIFF", compression="tiff_adobe_deflate"),
        lambda n: saved(picture(n), "TIFF", compression="jpeg"),
        lambda n: saved(wide(n), "TIFF", compression="packbits"),
        lambda n: moving(n, "TIFF"),
    ],
}
VARIANTS = 4
"""Pictures of each kind and way: mutations differ, the files they begin with need not."""


@functools.cache
def valid(suffix: str, way: int, number: int) -> bytes:
    return SOURCES[suffix][way](number)


def any_valid(chance: Chance, suffix: str | None = None) -> tuple[str, bytes]:
    suffix = suffix or str(chance.choice(list(SOURCES)))
    way = int(chance.integers(len(SOURCES[suffix])))
    return suffix, valid(suffix, way, int(chance.integers(VARIANTS)))


def bits_flipped(data: bytes, chance: Chance) -> bytes:
    changed = bytearray(data)
    for place in chance.integers(0, len(data), chance.integers(1, 20)):
        changed[place] ^= 1 << int(chance.integers(8))
    return bytes(changed)


def run_overwritten(data: bytes, chance: Chance) -> bytes:
    start, length = int(chance.integers(len(data))), int(chance.integers(1, 64))
    filler = [bytes(length), b"\xff" * length, chance.bytes(length)][int(chance.integers(3))]
    return data[:start] + filler + data[start + length :]


def truncated(data: bytes, chance: Chance) -> bytes:
    return data[: int(chance.integers(len(data)))]


def spliced(data: bytes, chance: Chance) -> bytes:
    """The head of one file and the tail of another, of its kind or not."""
    _, other = any_valid(chance)
    return data[: int(chance.integers(len(data)))] + other[int(chance.integers(len(other))) :]


def number_blown_up(data: bytes, chance: Chance) -> bytes:
    """A field of one, two or four bytes, most often in the head, set to where numbers break."""
    reach = len(data) if chance.random() < 0.3 else min(len(data), 200)
    place, width = int(chance.integers(reach)), int(chance.choice([1, 2, 4]))
    limit = LIMITS[int(chance.integers(len(LIMITS)))] & (1 << 8 * width) - 1
    order = "little" if chance.random() < 0.5 else "big"
    return jp.patched(data, place, limit.to_bytes(width, order))


def pieces(data: bytes) -> list[bytes]:
    """A file cut where its own format cuts it, as far as that can be seen."""
    edges = [0]
    if data[:2] == jp.SOI:
        edges += [end for _, _, end in jp.segments(data)]
    elif data[:4] == b"\x89PNG":
        place = 8
        while place + 4 <= len(data):
            edges.append(place)
            place += 12 + struct.unpack_from(">I", data, place)[0]
    else:
        edges += list(range(64, len(data), 64))
    return [data[a:b] for a, b in zip(edges, [*edges[1:], len(data)], strict=True)]


def pieces_moved(data: bytes, chance: Chance) -> bytes:
    """Some of its pieces twice, some gone, some in another place."""
    found = pieces(data)
    for _ in range(int(chance.integers(1, 4))):
        place = int(chance.integers(len(found)))
        piece = found[place] if chance.random() < 0.6 else found.pop(place)
        copies = int(chance.choice([0, 1, 1, 40]))
        found[int(chance.integers(len(found) + 1)) : 0] = [piece] * copies
        found = found or [b""]
    return b"".join(found)


def sums_mended(data: bytes) -> bytes:
    """A PNG with the checksums of its chunks made right, so that damage gets past them."""
    mended, place = data[:8], 8
    while place + 12 <= len(data):
        end = place + 8 + struct.unpack_from(">I", data, place)[0]
        if end + 4 > len(data):
            break
        mended += data[place:end] + struct.pack(">I", zlib.crc32(data[place + 4 : end]))
        place = end + 4
    return mended + data[place:]


WAYS = [bits_flipped, run_overwritten, truncated, spliced, number_blown_up, pieces_moved]


def mutated(seed: int, suffix: str | None = None) -> tuple[str, str, bytes]:
    """Suffix, the way it was damaged, and the file."""
    chance = np.random.default_rng([seed, 4242])
    suffix, data = any_valid(chance, suffix)
    way = WAYS[int(chance.integers(len(WAYS)))]
    for _ in range(1 if chance.random() < 0.8 else 3):
        data = way(data, chance) if data else data
    if data[:4] == b"\x89PNG" and chance.random() < 0.7:
        data = sums_mended(data)
    return suffix, way.__name__, data
