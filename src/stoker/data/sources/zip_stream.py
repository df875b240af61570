"""A zip read forward, member by member, so that it may come from standard input.

The standard library's reader begins at a zip's end and keeps half a kilobyte a member: neither
suits a download or a million members. Invariants: what the directory at the end lists must be as
many members as were met; checksums are compared; a member that cannot be read is told with its
reason, a stream that cannot be followed any further is an error.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO
from zipfile import BadZipFile

BOMB_BYTES, BOMB_RATIO = 1 << 30, 100
"""Unpacking stops where so much, and so many times the archive's size, came out."""
PIECE = 1 << 16
LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
END64, LOCATOR64, DESCRIPTOR = b"PK\x06\x06", b"PK\x06\x07", b"PK\x07\x08"
STORED, DEFLATED = 0, 8
ENCRYPTED, STREAMED, UTF8 = 1, 8, 0x800
UNKNOWN = 0xFFFFFFFF


class Bomb(Exception):
    """An archive that unpacks to absurdly more than its size."""


def refuse_bomb(came_out: int, went_in: int) -> None:
    if came_out > BOMB_BYTES and came_out > BOMB_RATIO * went_in:
        raise Bomb(f"unpacks to more than {BOMB_RATIO} times its size")


class ByteStream:
    """Bytes in order, with what was taken too early put back."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._back = b""
        self.went_in = self.came_out = 0

    def some(self, most: int) -> bytes:
        piece = self._back[:most] if self._back else self._source.read(most)
        self._back = self._back[len(piece) :] if self._back else b""
        if not piece:
            raise EOFError("unexpected end")
        self.went_in += len(piece)
        return piece

    def some_or_none(self, most: int) -> bytes:
        """The same, or nothing at the end."""
        try:
            return self.some(most)
        except EOFError:
            return b""

    def exactly(self, size: int) -> bytes:
        pieces = []
        while size:
            pieces.append(self.some(min(size, PIECE)))
            size -= len(pieces[-1])
        return b"".join(pieces)

    def skip(self, size: int) -> None:
        while size:
            size -= len(self.some(min(size, PIECE)))

    def put_back(self, piece: bytes) -> None:
        self._back = piece + self._back
        self.went_in -= len(piece)

    def inflated(self, size: int) -> None:
        self.came_out += size
        refuse_bomb(self.came_out, self.went_in)


@dataclass
class Unzipped:
    """A member as its local header describes it."""

    raw_name: bytes
    flags: int
    method: int
    checksum: int
    packed: int | None
    """Compressed bytes still to come, where the header says how many."""
    sized: bool
    """Whether the header says how many bytes there are; else the data itself must end them."""
    wide: bool
    stream: ByteStream = field(repr=False)
    followed: bool = False
    """Whether the end of the member's data has been reached."""
    _pieces: Iterator[bytes] | None = None

    @property
    def name(self) -> str:
        """UTF-8 where it is said, or where it can be nothing else: most writers do not say it."""
        try:
            return self.raw_name.decode("utf-8")
        except UnicodeDecodeError:
            text = "utf-8" if self.flags & UTF8 else "cp437"
            return self.raw_name.decode(text, "surrogateescape")

    def read(self, largest: int) -> tuple[bytes | None, str | None]:
        """The member's bytes, or why there are none."""
        if self.flags & ENCRYPTED:
            return None, "encrypted in the archive"
        if self.method not in (STORED, DEFLATED):
            return None, f"compressed by a method that is not read ({self.method})"
        pieces, size, checksum = [], 0, 0
        try:
            for piece in self.pieces():
                size += len(piece)
                if size > largest:
                    return None, f"file larger than {largest >> 20} MiB"
                pieces.append(piece)
                checksum = zlib.crc32(piece, checksum)
        except zlib.error as error:
            if self.packed is None:
                raise BadZipFile(f"{error} in a streamed member") from error
            return None, "damaged in the archive (does not inflate)"
        if checksum != self.checksum:
            return None, "damaged in the archive (checksum)"
        return b"".join(pieces), None

    def pieces(self) -> Iterator[bytes]:
        """The member's data as it is uncompressed; asked again, it goes on where it was."""
        self._pieces = self._pieces or self._uncompressed()
        return self._pieces

    def _uncompressed(self) -> Iterator[bytes]:
        if self.method == STORED and not self.sized:
            yield from self._up_to_descriptor()
        elif self.method == STORED:
            while self.packed:
                yield self._take(PIECE)
        else:
            yield from self._inflate()
        self._follow()

    def _take(self, most: int) -> bytes:
        piece = self.stream.some(most if self.packed is None else min(most, self.packed))
        if self.packed is not None:
            self.packed -= len(piece)
        return piece

    def _inflate(self) -> Iterator[bytes]:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        while not inflate.eof:
            if inflate.unconsumed_tail:
                waiting = inflate.unconsumed_tail
            elif self.packed == 0:
                raise zlib.error("ends early")
            else:
                waiting = self._take(PIECE)
            piece = inflate.decompress(waiting, PIECE)
            self.stream.inflated(len(piece))
            yield piece
        if inflate.unused_data:
            self.stream.put_back(inflate.unused_data)
            if self.packed is not None:
                self.packed += len(inflate.unused_data)

    def _up_to_descriptor(self) -> Iterator[bytes]:
        """Stored data of unknown size ends where a descriptor tells the sum and size of all that
        came before it."""
        held, checksum, size = b"", 0, 0
        while True:
            held += self.stream.some(PIECE)
            place = held.find(DESCRIPTOR)
            while place >= 0:
                while len(held) < place + 24:
                    more = self.stream.some_or_none(24)
                    if not more:
                        break
                    held += more
                told = held[place + 4 : place + (24 if self.wide else 16)]
                length = (size + place).to_bytes(8 if self.wide else 4, "little")
                # Sizes first: a false mark must not cost a sum over all that came before it.
                if told[4:] == length + length and int.from_bytes(told[:4], "little") == zlib.crc32(
                    held[:place], checksum
                ):
                    self.stream.put_back(held[place:])
                    yield held[:place]
                    return
                place = held.find(DESCRIPTOR, place + 1)
            done = held[:-3]
            held = held[-3:]
            checksum, size = zlib.crc32(done, checksum), size + len(done)
            yield done

    def _follow(self) -> None:
        """Read the sizes and the checksum that a streamed member has behind its data."""
        if self.packed:
            self.stream.skip(self.packed)
        self.packed, self.followed = 0, True
        if self.flags & STREAMED:
            first = self.stream.exactly(4)
            checksum = self.stream.exactly(4) if first == DESCRIPTOR else first
            self.checksum = int.from_bytes(checksum, "little")
            self.stream.skip(16 if self.wide else 8)

    def finish(self) -> None:
        """Go on to the next member, however much of this one was read."""
        if self.followed:
            return
        if self.packed is not None:
            self._follow()
        elif self.flags & ENCRYPTED or self.method not in (STORED, DEFLATED):
            raise BadZipFile(f"'{self.name}' does not say where it ends")
        else:
            for _ in self.pieces():
                pass


def unzip(source: IO[bytes]) -> Iterator[Unzipped]:
    """The members of a zip in the order they lie in it."""
    stream = ByteStream(source)
    met = listed = 0
    said_here = said_there = 0
    while (mark := stream.exactly(4)) == LOCAL:
        member = local_header(stream)
        yield member
        member.finish()
        met += 1
        said_here += mark_of(member.raw_name, member.checksum)
    while mark == CENTRAL:
        fields = stream.exactly(42)
        name_size, extra_size, comment_size = struct.unpack("<HHH", fields[24:30])
        said_there += mark_of(stream.exactly(name_size), int.from_bytes(fields[12:16], "little"))
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
        raise BadZipFile(f"damaged at byte {stream.went_in - 4:,}")
    if listed != met:
        raise BadZipFile(f"its directory lists {listed:,} members, {met:,} were met")
    if said_here != said_there:
        raise BadZipFile("its directory names other members than were met")


def mark_of(name: bytes, checksum: int) -> int:
    """A number for a member: their sum tells, in any order, whether two lists are the same."""
    digest = hashlib.sha256(name + checksum.to_bytes(4, "little")).digest()
    return int.from_bytes(digest[:16], "little")


def local_header(stream: ByteStream) -> Unzipped:
    """What is said before a member's data."""
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
