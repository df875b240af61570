"""Archives as an attacker, a broken download or an odd tool would make them, by code."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from hostile_jpeg import saved
from samples import picture

Member = tuple[str, bytes]
BLOCK = tarfile.BLOCKSIZE


@functools.cache
def image(label: int, number: int) -> bytes:
    return saved(picture(label, number, (24, 20)), "JPEG")


def good(folder: str = "photos/") -> list[Member]:
    """Four cats and four dogs."""
    return [
        (f"{folder}{name}/{number}.jpg", image(label, number))
        for label, name in enumerate(("cat", "dog"))
        for number in range(4)
    ]


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **fields: Any) -> bytes:
    """One header block of a tar; its size may be a lie."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    for field, value in fields.items():
        setattr(member, field, value)
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def file_in_tar(name: str, data: bytes) -> bytes:
    return header(name, len(data)) + padded(data)


def tar(members: list[Member], *more: bytes, end: bytes = bytes(2 * BLOCK)) -> bytes:
    """A tar of good members with raw pieces behind them."""
    return b"".join(file_in_tar(*member) for member in members) + b"".join(more) + end


def with_name(name: str) -> bytes:
    return tar(good(), file_in_tar(name, image(2, 0)))


def thing(kind: bytes, **fields: Any) -> bytes:
    return tar(good(), header("photos/cat/thing.jpg", 0, kind, **fields))


def summed(block: bytes) -> bytes:
    """A header block with its checksum made right."""
    blank = block[:148] + b" " * 8 + block[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


def raw_name(name: bytes) -> bytes:
    block = header("x", len(image(2, 0)))
    return tar(good(), summed(name.ljust(100, b"\0") + block[100:]) + padded(image(2, 0)))


def negative_size() -> bytes:
    """A size of minus one block, as base-256 allows: a naive reader never gets past it."""
    block = header("photos/cat/minus.jpg")
    return tar(good(), summed(block[:124] + b"\xff" * 10 + b"\xfe\x00" + block[136:]))


def pax(records: bytes, kind: bytes = tarfile.XHDTYPE, claims: int | None = None) -> bytes:
    size = len(records) if claims is None else claims
    return header("./PaxHeaders/x", size, kind) + padded(records)


def record(word: str, value: str) -> bytes:
    """`LENGTH WORD=VALUE`, where the length counts itself."""
    body = f" {word}={value}\n".encode("utf-8", "surrogateescape")
    size = len(body) + len(str(len(body) + len(str(len(body)))))
    return str(size).encode() + body


def with_pax(*records: bytes) -> bytes:
    data = image(2, 0)
    return tar(good(), pax(b"".join(records)), file_in_tar("photos/cat/pax.jpg", data))


def pax_claiming(size: int) -> bytes:
    return tar(good(), pax(b"", claims=size), end=b"")


def long_name(size: int) -> bytes:
    """GNU's way to write names of any length."""
    name = b"photos/cat/" + b"n" * size + b".jpg\0"
    longer = header("././@LongLink", len(name), tarfile.GNUTYPE_LONGNAME) + padded(name)
    return tar(good(), longer, file_in_tar("photos/cat/short.jpg", image(2, 0)))


def headers_in_a_row(kind: bytes, count: int) -> bytes:
    """Headers that each speak of the next: a reader that calls itself runs out of stack."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        one = header("././@LongLink", 4, kind) + padded(b"abc\0")
    else:
        one = pax(record("comment", "x"), kind)
    return tar(good(), one * count, file_in_tar("photos/cat/last.jpg", image(2, 0)))


def sparse() -> bytes:
    """A member of 10 GB that is all hole, in GNU's old form."""
    block = bytearray(header("photos/cat/hole.jpg", 0, tarfile.GNUTYPE_SPARSE))
    block[386:398] = b"00000000000\0"
    block[398:410] = b"00000000000\0"
    block[483:495] = b"77777777777\0"
    return tar(good(), summed(bytes(block)))


def sparse_map(blocks: int) -> Iterator[bytes]:
    """A sparse member whose map goes on and on."""
    block = bytearray(header("photos/cat/map.jpg", 0, tarfile.GNUTYPE_SPARSE))
    block[482] = 1
    yield tar(good(), summed(bytes(block)), end=b"")
    part = b"00000000001\0" * 42
    yield from [part + b"\1" + bytes(7)] * blocks


def tar_of_tars() -> bytes:
    """As the training images of a well-known set come: a tar a class."""
    inner = {
        name: tar([(f"{name}_{number}.JPEG", image(label, number)) for number in range(4)])
        for label, name in enumerate(("n01440764", "n01443537"))
    }
    return tar([(f"{name}.tar", data) for name, data in inner.items()])


def russian_doll(depth: int) -> bytes:
    data = tar([("cat/0.jpg", image(0, 0))])
    for level in range(depth):
        data = tar([(f"doll{level}.tar", data)])
    return tar([*good(""), ("doll.tar", data)])


def many_members(images: int, others: int) -> bytes:
    """Members without a byte, some of them named as images."""
    empty = header("photos/cat/empty.jpg") * images + header("photos/cat/notes.txt") * others
    return gzip.compress(tar(good(), empty), 1)


def gzipped(pieces: Iterator[bytes], tool: Any = None) -> bytes:
    packer = tool or zlib.compressobj(1, zlib.DEFLATED, 31)
    return b"".join(packer.compress(piece) for piece in pieces) + packer.flush()


def zeros_in_tar(size: int) -> Iterator[bytes]:
    """A member of that many zeros, named as an image."""
    yield tar(good(), header("photos/cat/zeros.jpg", size), end=b"")
    yield from [bytes(1 << 20)] * (size >> 20)
    yield bytes(2 * BLOCK)


def gz_bomb(size: int) -> bytes:
    return gzipped(zeros_in_tar(size))


def bz2_bomb(size: int) -> bytes:
    return gzipped(zeros_in_tar(size), bz2.BZ2Compressor(1))


def xz_bomb(size: int) -> bytes:
    """An xz whose header asks for a dictionary of 4 GB."""
    made = gzipped(zeros_in_tar(size), lzma.LZMACompressor(preset=0))
    block = bytearray(made[12:24])
    assert block[2:4] == b"\x21\x01", "an LZMA2 filter with one byte of settings"
    block[4] = 40
    block[8:12] = struct.pack("<I", zlib.crc32(bytes(block[:8])))
    return made[:12] + bytes(block) + made[24:]


def zipped(
    members: list[Member], change: Callable[[zipfile.ZipFile], object] = lambda file: None
) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members:
            file.writestr(name, data)
        change(file)
    return made.getvalue()


def zip_with_raw_name(name: bytes) -> bytes:
    """A member whose name is any bytes, in both places where a zip writes it."""
    stand_in = b"photos/cat/" + b"Q" * (len(name) - 11)
    return zipped([*good(), (stand_in.decode(), image(2, 0))]).replace(stand_in, name)


class Unseekable(io.RawIOBase):
    """Takes bytes and cannot go back: what is written through it has data descriptors."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self.data += bytes(piece)
        return len(piece)


def streamed_zip(method: int = zipfile.ZIP_DEFLATED, zeros: int = 0) -> bytes:
    sink = Unseekable()
    with zipfile.ZipFile(sink, "w", method) as file:
        for name, data in good():
            file.writestr(name, data)
        if zeros:
            with file.open("photos/cat/zeros.jpg", "w", force_zip64=True) as member:
                for _ in range(zeros >> 20):
                    member.write(bytes(1 << 20))
            file.writestr("photos/cat/last.jpg", image(2, 1))
    return bytes(sink.data)


def zip64() -> bytes:
    def add(file: zipfile.ZipFile) -> None:
        with file.open("photos/cat/large.jpg", "w", force_zip64=True) as member:
            member.write(image(2, 0))

    return zipped(good(), add)


def wrong_sum() -> bytes:
    """The checksum of one member is wrong in both places."""
    data = zipped(good())
    sum_ = struct.pack("<I", zlib.crc32(image(0, 1)))
    assert data.count(sum_) == 2
    return data.replace(sum_, b"\1\2\3\4")


def encrypted() -> bytes:
    """One member says that it is encrypted."""
    data = bytearray(zipped([*good(), ("photos/cat/secret.jpg", image(2, 0))]))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.rindex(mark) + offset] |= 1
    return bytes(data)


def zip_bomb(size: int) -> bytes:
    """One member of zeros, a thousand times smaller than it is."""

    def add(file: zipfile.ZipFile) -> None:
        with file.open("photos/cat/zeros.jpg", "w", force_zip64=True) as member:
            for _ in range(size >> 20):
                member.write(bytes(1 << 20))

    return zipped(good(), add)


def directory(data: bytes) -> tuple[bytes, list[bytes], bytes]:
    """A zip as members, the entries of its directory, and its end."""
    end = data.rindex(b"PK\x05\x06")
    start = struct.unpack_from("<I", data, end + 16)[0]
    entries, place = [], start
    while place < end:
        size = 46 + sum(struct.unpack_from("<HHH", data, place + 28))
        entries.append(data[place : place + size])
        place += size
    return data[:start], entries, data[end:]


def with_directory(body: bytes, entries: list[bytes], end: bytes) -> bytes:
    listed = b"".join(entries)
    counts = struct.pack("<HHII", len(entries), len(entries), len(listed), len(body))
    return body + listed + end[:8] + counts + end[20:]


def overlapping() -> bytes:
    """A thousand entries of the directory that all point at one member."""
    body, entries, end = directory(zipped(good()))
    return with_directory(body, entries + entries[:1] * 1000, end)


def other_names_in_directory() -> bytes:
    """Local headers say cat and dog, the directory says other names of the same length."""
    body, entries, end = directory(zipped(good()))
    return with_directory(body, [e.replace(b"photos/", b"../../.") for e in entries], end)


def missing_from_directory() -> bytes:
    body, entries, end = directory(zipped(good()))
    return with_directory(body, entries[:-3], end)


def size_in_header(size: int) -> bytes:
    """A local header that claims other sizes than the directory."""
    return good_zip_patched(18, struct.pack("<II", size, size))


def good_zip_patched(offset: int, new: bytes) -> bytes:
    data = bytearray(zipped(good()))
    place = [at for at in range(len(data)) if data[at : at + 4] == b"PK\x03\x04"][3]
    data[place + offset : place + offset + len(new)] = new
    return bytes(data)


def cut(data: bytes, share: float) -> bytes:
    return data[: int(len(data) * share)]
