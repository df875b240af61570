"""Read a zip forward, member by member, so that it may come from standard input.

The standard library's reader starts at a zip's end and keeps half a kilobyte per member: neither
suits a stream or a million members. Invariants: the directory at the end must list the members that
were read; checksums are compared. A member that cannot be read is returned with a reason; a stream
whose next member cannot be located is an error.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO
from zipfile import BadZipFile

BOMB_BYTES, BOMB_RATIO = 1 << 30, 100
"""Unpacking stops after more bytes than this that are also so many times the compressed size."""
READ_BYTES = 1 << 16
LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
END64, LOCATOR64, DESCRIPTOR = b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08"
STORED, DEFLATED = 0, 8
ENCRYPTED, STREAMED, UTF8 = 1, 8, 0x800
UNKNOWN = 0xFFFFFFFF


class Bomb(Exception):
    """An archive that unpacks to far more than its size."""


def refuse_bomb(unpacked: int, packed: int) -> None:
    """Raise Bomb where so many unpacked bytes came out of so few packed ones."""
    if unpacked > BOMB_BYTES and unpacked > BOMB_RATIO * packed:
        raise Bomb(f"unpacks to more than {BOMB_RATIO} times its size")


class ByteStream:
    """Bytes in order; bytes that were read too far can be put back."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self._returned = source, b""
        self.packed_bytes = self.unpacked_bytes = 0

    def some(self, most: int) -> bytes:
        """At least one and at most `most` bytes. Raises EOFError at the end."""
        data = self._returned[:most] or self._source.read(most)
        self._returned = self._returned[len(data) :]
        if not data:
            raise EOFError("unexpected end")
        self.packed_bytes += len(data)
        return data

    def exactly(self, size: int) -> bytes:
        blocks = []
        while size:
            blocks.append(self.some(min(size, READ_BYTES)))
            size -= len(blocks[-1])
        return b"".join(blocks)

    def skip(self, size: int) -> None:
        while size:
            size -= len(self.some(min(size, READ_BYTES)))

    def put_back(self, data: bytes) -> None:
        self._returned = data + self._returned
        self.packed_bytes -= len(data)

    def count_unpacked(self, size: int) -> None:
        """Count bytes that were decompressed. Raises Bomb where they are too many."""
        self.unpacked_bytes += size
        refuse_bomb(self.unpacked_bytes, self.packed_bytes)


@dataclass
class Unzipped:
    """A member as its local header describes it."""

    raw_name: bytes
    flags: int
    method: int
    checksum: int
    packed: int | None
    """Compressed bytes that are still unread; None where the header does not give the size."""
    sized: bool
    """The header gives the size; without it the data itself must show its end."""
    wide: bool
    """Sizes behind the data have 64 bits."""
    stream: ByteStream = field(repr=False)
    finished: bool = False
    """The end of the member's data has been reached."""
    _blocks: Iterator[bytes] | None = None

    @property
    def name(self) -> str:
        """Decoded as UTF-8 where that is possible: most writers use it without setting its flag."""
        try:
            return self.raw_name.decode("utf-8")
        except UnicodeDecodeError:
            encoding = "utf-8" if self.flags & UTF8 else "cp437"
            return self.raw_name.decode(encoding, "surrogateescape")

    def read(self, largest: int) -> tuple[bytes | None, str | None]:
        """The member's bytes, or the reason why there are none."""
        if self.flags & ENCRYPTED:
            return None, "encrypted in the archive"
        if self.method not in (STORED, DEFLATED):
            return None, f"compressed by a method that is not read ({self.method})"
        blocks, size, checksum = [], 0, 0
        try:
            for block in self.blocks():
                size += len(block)
                if size > largest:
                    return None, f"file larger than {largest >> 20} MiB"
                blocks.append(block)
                checksum = zlib.crc32(block, checksum)
        except zlib.error as error:
            if self.packed is None:
                raise BadZipFile(f"{error} in a streamed member") from error
            return None, "damaged in the archive (does not inflate)"
        if checksum != self.checksum:
            return None, "damaged in the archive (checksum)"
        return b"".join(blocks), None

    def blocks(self) -> Iterator[bytes]:
        """The member's data, decompressed; a second call continues where the first one stopped."""
        self._blocks = self._blocks or self._decompress()
        return self._blocks

    def _decompress(self) -> Iterator[bytes]:
        if self.method == STORED and not self.sized:
            yield from self._up_to_descriptor()
        elif self.method == STORED:
            while self.packed:
                yield self._take(READ_BYTES)
        else:
            yield from self._inflate()
        self._read_end()

    def _take(self, most: int) -> bytes:
        block = self.stream.some(most if self.packed is None else min(most, self.packed))
        if self.packed is not None:
            self.packed -= len(block)
        return block

    def _inflate(self) -> Iterator[bytes]:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        while not inflate.eof:
            if inflate.unconsumed_tail:
                data = inflate.unconsumed_tail
            elif self.packed == 0:
                raise zlib.error("ends early")
            else:
                data = self._take(READ_BYTES)
            block = inflate.decompress(data, READ_BYTES)
            self.stream.count_unpacked(len(block))
            yield block
        if inflate.unused_data:
            self.stream.put_back(inflate.unused_data)
            if self.packed is not None:
                self.packed += len(inflate.unused_data)

    def _up_to_descriptor(self) -> Iterator[bytes]:
        """Yield stored data up to a descriptor with the checksum and size of all data before it."""
        buffer, checksum, size = b"", 0, 0
        while True:
            buffer += self.stream.some(READ_BYTES)
            offset = buffer.find(DESCRIPTOR)
            while offset >= 0:
                with suppress(EOFError):
                    while len(buffer) < offset + 24:
                        buffer += self.stream.some(24)
                fields = buffer[offset + 4 : offset + (24 if self.wide else 16)]
                length = (size + offset).to_bytes(8 if self.wide else 4, "little")
                # Sizes first: a false mark must not cost a checksum of all data before it.
                claimed = int.from_bytes(fields[:4], "little")
                if fields[4:] == length * 2 and claimed == zlib.crc32(buffer[:offset], checksum):
                    self.stream.put_back(buffer[offset:])
                    yield buffer[:offset]
                    return
                offset = buffer.find(DESCRIPTOR, offset + 1)
            done, buffer = buffer[:-3], buffer[-3:]
            checksum, size = zlib.crc32(done, checksum), size + len(done)
            yield done

    def _read_end(self) -> None:
        """Skip the rest of the data; read the checksum that follows a streamed member's data."""
        if self.packed:
            self.stream.skip(self.packed)
        self.packed, self.finished = 0, True
        if self.flags & STREAMED:
            first = self.stream.exactly(4)
            checksum = self.stream.exactly(4) if first == DESCRIPTOR else first
            self.checksum = int.from_bytes(checksum, "little")
            self.stream.skip(16 if self.wide else 8)

    def finish(self) -> None:
        """Move to the end of this member. Raises BadZipFile where it cannot be located."""
        if self.finished:
            return
        if self.packed is not None:
            self._read_end()
        elif self.flags & ENCRYPTED or self.method not in (STORED, DEFLATED):
            raise BadZipFile(f"'{self.name}' does not say where it ends")
        else:
            for _ in self.blocks():
                pass


def unzip(source: IO[bytes]) -> Iterator[Unzipped]:
    """Yield the members in order. Raises BadZipFile where the directory at the end does not list
    them, EOFError where the zip ends early, Bomb where it unpacks to too much."""
    stream = ByteStream(source)
    members = listed = member_sum = listed_sum = 0
    while (mark := stream.exactly(4)) == LOCAL:
        member = local_header(stream)
        yield member
        member.finish()
        members += 1
        member_sum += fingerprint(member.raw_name, member.checksum)
    while mark == CENTRAL:
        fields = stream.exactly(42)
        name_size, extra_size, comment_size = struct.unpack("<HHH", fields[24:30])
        checksum = int.from_bytes(fields[12:16], "little")
        listed_sum += fingerprint(stream.exactly(name_size), checksum)
        stream.skip(extra_size + comment_size)
        listed += 1
        mark = stream.exactly(4)
    if mark == END64:
        stream.skip(int.from_bytes(stream.exactly(8), "little"))
        mark = stream.exactly(4)
    if mark == LOCATOR64:
        stream.skip(16)
        mark = stream.exactly(4)
    if mark != END:
        raise BadZipFile(f"damaged at byte {stream.packed_bytes - 4:,}")
    if listed != members:
        raise BadZipFile(f"its directory lists {listed:,} members, but it holds {members:,}")
    if listed_sum != member_sum:
        raise BadZipFile("its directory lists other members than it holds")


def fingerprint(name: bytes, checksum: int) -> int:
    """A number for a member: the sum over all members is the same in any order of them."""
    digest = hashlib.sha256(name + checksum.to_bytes(4, "little")).digest()
    return int.from_bytes(digest[:16], "little")


def local_header(stream: ByteStream) -> Unzipped:
    fields = struct.unpack("<HHHHHIIIHH", stream.exactly(26))
    _, flags, method, _, _, checksum, packed, plain, name_size, extra_size = fields
    raw, extra = stream.exactly(name_size), stream.exactly(extra_size)
    wide = False
    while len(extra) >= 4:
        kind, size = struct.unpack("<HH", extra[:4])
        if kind == 1:
            wide = True
            large = extra[4 : 4 + size]
            skipped = 8 if plain == UNKNOWN else 0
            if packed == UNKNOWN and len(large) >= skipped + 8:
                packed = int.from_bytes(large[skipped : skipped + 8], "little")
        extra = extra[4 + size :]
    sized = not flags & STREAMED or bool(packed)
    return Unzipped(raw, flags, method, checksum, packed if sized else None, sized, wide, stream)
