"""JPEGs as an attacker or a bad disk would make them, from one good picture, byte by byte."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 48, 40
SOI, EOI, SOS, DHT, SOF0, RST0 = b"\xff\xd8", b"\xff\xd9", 0xDA, 0xC4, 0xC0, 0xD0


def photo(width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """A smooth picture without symmetry, so that every wrong turn shows; no two sizes alike."""
    down, across = np.mgrid[0:height, 0:width]
    red, green = across * 255 // width, down * 255 // height
    return Image.fromarray(np.stack([red, green, (red + green) // 2], axis=2).astype(np.uint8))


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg(**options: Any) -> bytes:
    return saved(photo(), "JPEG", **options)


def noisy_jpeg(**options: Any) -> bytes:
    """One with a long scan."""
    noise = np.random.default_rng(7).normal(0, 60, (HEIGHT, WIDTH, 3))
    pixels = np.clip(np.asarray(photo()) + noise, 0, 255).astype(np.uint8)
    return saved(Image.fromarray(pixels), "JPEG", **options)


def segment(marker: int, body: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body


def inserted(data: bytes, *segments: bytes) -> bytes:
    """Segments put right behind the first marker."""
    return data[:2] + b"".join(segments) + data[2:]


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Marker, start and end of each segment up to and with the first scan's header."""
    place = 2
    while data[place : place + 1] == b"\xff" and place + 4 <= len(data):
        marker = data[place + 1]
        end = place + 2 + int.from_bytes(data[place + 2 : place + 4])
        yield marker, place, end
        if marker == SOS:
            return
        place = end


def scan_of(data: bytes) -> tuple[int, int]:
    """Where the coded pixels of the only scan begin and end."""
    return list(segments(data))[-1][2], data.rindex(EOI)


def frame_of(data: bytes) -> int:
    return next(start for marker, start, _ in segments(data) if 0xC0 <= marker <= 0xC2)


def patched(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


def other_frame(marker: int) -> bytes:
    """The frame's header says another process: lossless, arithmetic, hierarchical."""
    data = jpeg()
    return patched(data, frame_of(data) + 1, bytes([marker]))


def precision(bits: int) -> bytes:
    data = jpeg()
    return patched(data, frame_of(data) + 4, bytes([bits]))


def claiming(width: int, height: int) -> bytes:
    data = jpeg()
    return patched(data, frame_of(data) + 5, struct.pack(">HH", height, width))


def sampling(factors: tuple[int, int, int], **options: Any) -> bytes:
    """Sampling factors as the header claims them; the scan knows nothing of it."""
    data = jpeg(subsampling=0, **options)
    for number, factor in enumerate(factors):
        data = patched(data, frame_of(data) + 11 + 3 * number, bytes([factor]))
    return data


def cut_at(tenth: int) -> bytes:
    """Cut in the scan and at nine places before it: the first cuts go through the headers."""
    data = noisy_jpeg()
    return data[: max(len(data) * tenth // 10, 2)]


def oriented(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(exif=exif)


def with_exif(block: bytes) -> bytes:
    return inserted(jpeg(), segment(0xE1, b"Exif\0\0" + block))


def ycck() -> bytes:
    """A CMYK JPEG whose Adobe marker says that its colours are YCCK."""
    data = saved(photo().convert("CMYK"), "JPEG")
    return patched(data, data.index(b"Adobe") + 11, b"\x02")


def huge_segments() -> bytes:
    """Two megabytes of application data before the first table."""
    return inserted(jpeg(), *[segment(0xE5, bytes(65_000))] * 32)


def icc() -> bytes:
    from PIL import ImageCms

    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return jpeg(icc_profile=profile)


def broken_icc() -> bytes:
    """Piece 7 of 3 of a profile that is not one."""
    return inserted(jpeg(), segment(0xE2, b"ICC_PROFILE\0\x07\x03" + b"\xff" * 100))


def with_restarts(**options: Any) -> bytes:
    """A restart marker after every block row's worth of four MCUs."""
    return noisy_jpeg(subsampling=0, restart_marker_blocks=4, **options)


def restart_places(data: bytes) -> list[int]:
    begin, end = scan_of(data)
    places = range(begin, end - 1)
    return [p for p in places if data[p] == 0xFF and RST0 <= data[p + 1] <= RST0 + 7]


def renumbered_restarts() -> bytes:
    """Every restart marker has the number of another."""
    data = bytearray(with_restarts())
    for count, place in enumerate(restart_places(bytes(data))):
        data[place + 1] = RST0 + (count * 3 + 5) % 8
    return bytes(data)


def swapped_restarts() -> bytes:
    """Two stretches between restart markers changed places, markers and all."""
    data = with_restarts()
    a, b, c, d = restart_places(data)[2:6]
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def lost_restart() -> bytes:
    """A stretch between two restart markers is gone."""
    data = with_restarts()
    a, b = restart_places(data)[2:4]
    return data[:a] + data[b:]


def flipped(start: float, count: int = 1, **options: Any) -> bytes:
    """Bytes of the scan inverted, from a place given as a share of it; none becomes a marker."""
    data = bytearray(noisy_jpeg(**options))
    begin, end = scan_of(bytes(data))
    place = begin + int((end - begin) * start)
    changed = 0
    while changed < count:
        around = data[place - 1 : place + 2]
        if 0xFF not in around and 0 not in around:
            data[place] ^= 0xFF
            changed += 1
        place += 1
    return bytes(data)


def two_frames() -> bytes:
    data = jpeg()
    frame = frame_of(data)
    end = next(end for marker, start, end in segments(data) if start == frame)
    return data[:end] + data[frame:end] + data[end:]


def many_scans(count: int) -> bytes:
    """A progressive JPEG with its last scan again and again: each costs a pass over all blocks."""
    data = jpeg(progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + EOI


def without_tables() -> bytes:
    """No Huffman tables: the JPEGs inside motion pictures are like that."""
    data = jpeg()
    kept = [data[start:end] for marker, start, end in segments(data) if marker != DHT]
    return SOI + b"".join(kept) + data[scan_of(data)[0] :]


def nested() -> bytes:
    """A whole JPEG as the thumbnail of another."""
    return inserted(jpeg(), segment(0xE1, b"Exif\0\0" + noisy_jpeg(quality=20)))


def dc_only(factors: tuple[int, ...], mcus: int = 3) -> bytes:
    """A true baseline JPEG of flat blocks with any sampling factors: a row of MCUs, each block of
    which is one DC step and an end of block, in two codes of our own."""
    across = max(factor >> 4 for factor in factors)
    down = max(factor & 15 for factor in factors)
    frame = struct.pack(">BHHB", 8, 8 * down, 8 * across * mcus, len(factors))
    scan = bytes([len(factors)])
    for number, factor in enumerate(factors, 1):
        frame += bytes([number, factor, 0])
        scan += bytes([number, 0])
    # DC: 0 = no step, 10 = a step of four bits. AC: 0 = end of block.
    steps = bytes([1, 1, *[0] * 14, 0, 4])
    ends = bytes([1, *[0] * 15, 0])
    blocks = [factor for factor in factors for _ in range((factor >> 4) * (factor & 15))]
    bits = "".join("10" + "1001" + "0" if count % 3 else "00" for count in range(len(blocks)))
    bits *= mcus
    bits += "1" * (-len(bits) % 8)
    coded = int(bits, 2).to_bytes(len(bits) // 8).replace(b"\xff", b"\xff\0")
    return b"".join(
        [
            SOI,
            segment(0xDB, b"\0" + b"\x08" * 64),
            segment(SOF0, frame),
            segment(DHT, b"\x00" + steps),
            segment(DHT, b"\x10" + ends),
            segment(SOS, scan + b"\0\x3f\0"),
            coded,
            EOI,
        ]
    )


def forged_table(more: int, at: int = 32) -> bytes:
    """A JPEG with the table of intervals that a packed set's own images have, one number of which
    is wrong: by default the place of the height, which then is that of the width."""
    from stoker.data.images.jpeg import encode_jpeg

    data = encode_jpeg(np.asarray(photo(200, 200)), 85)
    right = struct.unpack_from(">I", data, at)[0]
    return patched(data, at, struct.pack(">I", right + more))


def empty_scans(count: int) -> bytes:
    """A baseline JPEG with scan upon scan of its first component and no data in any: ten bytes
    each, and each costs a pass over all blocks."""
    data = jpeg()
    start = next(start for marker, start, _ in segments(data) if marker == SOS)
    return data[:start] + segment(SOS, b"\x01\x01\0\0\x3f\0") * count + EOI
