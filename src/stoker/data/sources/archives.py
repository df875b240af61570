"""The images in a tar or zip, one after the other, from a file or from standard input.

Invariants: an archive is read once, forward, and never unpacked: names in it are text, never
paths. No member is held in memory beyond the largest image allowed; headers that ask for more are
refused. An archive that ends early or is damaged is an error, never a shorter set. One that
unpacks to far more than its size is given up.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import select
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from stoker.data.images.decode_any import MAX_BYTES
from stoker.data.sources.item import Item, one_reason
from stoker.data.sources.layout import Ignored, is_hidden, is_image
from stoker.data.sources.zip_stream import Bomb, Unzipped, refuse_bomb, unzip
from stoker.errors import StokerError
from stoker.text import shown

LARGEST_HEADER, MOST_HEADERS = 1 << 20, 8 << 20
"""A tar header (names, attributes), or all of them before one member, that claims to be longer is
an attack."""
PIECE = 1 << 18
LOOK_UP_S = 0.3
NO_IMAGE = "not an image by its name"
GZIP, BZIP2, XZ, ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
"""How compressed files begin."""
XZ_MEMORY = 128 << 20
"""What the strongest setting of xz needs, and some; an archive may ask for four gigabytes."""


class Forward(io.RawIOBase):
    """A source that is only read on: it can skip but not go back, and counts what it gave."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._at = 0
        self.budget: int | None = None
        """Bytes that may still be read before the next member; None while one is read."""
        self.latest = b""
        """What was read last: at the end of a tar it tells the end mark from damage."""

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > LARGEST_HEADER:
            raise tarfile.ReadError(f"a header claims {size:,} bytes")
        if self.budget is not None:
            self.budget -= size
            if self.budget < 0:
                raise tarfile.ReadError("its headers do not end")
        pieces = []
        while size > 0 and (piece := self._source.read(min(size, PIECE))):
            pieces.append(piece)
            size -= len(piece)
            self._at += len(piece)
        self.latest = b"".join(pieces)
        return self.latest

    def tell(self) -> int:
        return self._at

    def seek(self, place: int, whence: int = 0) -> int:
        if whence or place < self._at:
            raise tarfile.ReadError("a header points backwards")
        while self._at < place and (piece := self._source.read(min(place - self._at, PIECE))):
            self._at += len(piece)
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


class Pipe(io.RawIOBase):
    """What is piped in, read so that a signal is heard while nothing comes: one that falls just
    before a read is else heard only after it."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def read(self, size: int = -1) -> bytes:
        while not select.select([self._handle], [], [], LOOK_UP_S)[0]:
            pass
        return os.read(self._handle, size)

    def readable(self) -> bool:
        return True


class Counted(io.RawIOBase):
    """Compressed bytes on their way in, counted."""

    def __init__(self, source: IO[bytes] | Pipe, already: bytes = b"") -> None:
        self._source, self._already = source, already
        self.bytes = 0

    def readinto(self, buffer: Any) -> int:
        piece = self._already or self._source.read(len(buffer))
        given, self._already = piece[: len(buffer)], piece[len(buffer) :]
        buffer[: len(given)] = given
        self.bytes += len(given)
        return len(given)

    def readable(self) -> bool:
        return True


class Unxz(io.RawIOBase):
    """An xz stream, or several in a row, uncompressed within bounded memory."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._lzma = lzma.LZMADecompressor(memlimit=XZ_MEMORY)

    def readinto(self, buffer: Any) -> int:
        while True:
            if self._lzma.eof:
                rest = self._lzma.unused_data or self._source.read(PIECE)
                if not rest.strip(b"\0"):
                    return 0
                self._lzma = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
            else:
                rest = self._source.read(PIECE) if self._lzma.needs_input else b""
                if not rest and self._lzma.needs_input:
                    raise EOFError("unexpected end")
            piece = self._lzma.decompress(rest, len(buffer))
            if piece:
                buffer[: len(piece)] = piece
                return len(piece)

    def readable(self) -> bool:
        return True


class Inflated(io.RawIOBase):
    """Decompressed bytes on their way out, watched for a bomb."""

    def __init__(self, source: Any, counted: Counted) -> None:
        self._source, self._counted = source, counted
        self._bytes = 0

    def readinto(self, buffer: Any) -> int:
        piece = self._source.read(len(buffer))
        buffer[: len(piece)] = piece
        self._bytes += len(piece)
        refuse_bomb(self._bytes, self._counted.bytes)
        return len(piece)

    def readable(self) -> bool:
        return True


def looks_like_one(path: Path) -> bool:
    """Whether a file begins as an archive does."""
    with path.open("rb") as file:
        head = file.read(tarfile.BLOCKSIZE)
    if head.startswith((b"PK", GZIP, BZIP2, XZ, ZSTD)):
        return True
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return head == bytes(tarfile.BLOCKSIZE)
    return True


def images_in(source: IO[bytes] | Pipe, name: str, ignored: Ignored) -> Iterator[Item]:
    """Every image of an archive that is read from its beginning."""
    head = source.read(8)
    while len(head) < 8 and (more := source.read(8 - len(head))):
        head += more
    counted = Counted(source, head)
    plain: Any = io.BufferedReader(counted, PIECE)
    try:
        if head.startswith(b"PK\x03\x04"):
            members = unzip(plain)
            yield from (item for one in members for item in zip_item(one, ignored))
            return
        if head.startswith(b"PK"):
            raise StokerError(f"{name} is a zip without members, or one part of several")
        opened = decompressed(head, plain, name)
        if opened is not plain:
            opened = io.BufferedReader(Inflated(opened, counted), PIECE)
        yield from tar_items(opened, name, "", ignored)
        # To the end, so that a damaged rest is noticed and whoever writes is not cut off.
        rest = [piece.strip(b"\0") != b"" for piece in iter(lambda: opened.read(PIECE), b"")]
        if any(rest):
            ignored.append(("(the rest)", "data after the archive's end mark"))
    except StokerError:
        raise
    except Bomb as error:
        raise StokerError(f"{name} {error}: given up, nothing in it is trusted") from error
    except Exception as error:
        # The readers below raise whatever they met in a damaged archive, recursion included.
        raise StokerError(
            f"{name} is damaged or ended early ({one_reason(error)}): get a whole copy and give "
            "the same command again; what was done is kept"
        ) from error


def decompressed(head: bytes, plain: Any, name: str) -> Any:
    """The tar inside whatever it is compressed with."""
    if head.startswith(GZIP):
        return gzip.GzipFile(fileobj=plain)
    if head.startswith(BZIP2):
        return bz2.BZ2File(plain)
    if head.startswith(XZ):
        return io.BufferedReader(Unxz(plain), PIECE)
    if head.startswith(ZSTD):
        raise StokerError(f"{name} is compressed with zstd: zstd -dc {name} | stoker pack - OUT")
    if not head:
        raise StokerError(f"{name} is empty: expected a tar or zip")
    return plain


def tar_items(source: IO[bytes], name: str, inside: str, ignored: Ignored) -> Iterator[Item]:
    """Every image of a tar; a tar in a tar is a folder (ImageNet comes like that)."""
    forward = Forward(source)
    forward.budget = MOST_HEADERS
    try:
        tar = tarfile.open(fileobj=forward, mode="r:")  # noqa: SIM115 - nothing of its own to close
    except tarfile.ReadError as error:
        if not inside and forward.tell() <= tarfile.BLOCKSIZE:
            raise StokerError(f"{name} is neither a tar nor a zip") from error
        raise tarfile.ReadError(f"not a tar: {one_reason(error)}") from error
    while (member := next_member(tar, forward)) is not None:
        vars(tar)["members"].clear()  # a million members must not pile up
        place = inside + member.name
        if member.isdir():
            continue
        why = unusual(member) or unwanted(place)
        if why == NO_IMAGE and place.endswith(".tar") and not inside:
            nested = tar.extractfile(member)
            assert nested is not None
            yield from tar_items(nested, name, place.removesuffix(".tar") + "/", ignored)
        elif why:
            ignored.append((shown(place), why))
        else:
            yield Item(tidy(place), *bounded(tar.extractfile(member), member.size))
    if forward.latest.strip(b"\0"):
        raise tarfile.ReadError(f"damaged at byte {max(forward.tell() - 512, 0):,}")
    if len(forward.latest) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("no end mark")


def next_member(tar: tarfile.TarFile, forward: Forward) -> tarfile.TarInfo | None:
    forward.budget = MOST_HEADERS
    try:
        return tar.next()
    finally:
        forward.budget = None


def unusual(member: tarfile.TarInfo) -> str | None:
    """Why a member of a tar is not a plain file."""
    if member.islnk():
        return "hard link in an archive: pack the folder, or tar --hard-dereference"
    if member.issym():
        return "link in an archive: not followed"
    if not member.isreg() or member.sparse:
        return "not a regular file"
    return None


def unwanted(name: str) -> str | None:
    """Why a name in an archive is passed over."""
    parts = PurePosixPath(tidy(name)).parts
    if ".." in parts:
        return "name leads out of the archive"
    if any(is_hidden(part) for part in parts):
        return "hidden"
    if not is_image(name):
        return NO_IMAGE
    return None


def tidy(name: str) -> str:
    """A member's name as a path below the archive: `./a//b` and `/a/b` are `a/b`."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def bounded(file: IO[bytes] | None, size: int) -> tuple[bytes | None, str | None]:
    """A member's bytes, or why there are none."""
    assert file is not None
    if size > MAX_BYTES:
        return None, f"file larger than {MAX_BYTES >> 20} MiB"
    pieces = []
    while size > 0 and (piece := file.read(min(size, PIECE))):
        pieces.append(piece)
        size -= len(piece)
    if size:
        raise tarfile.ReadError("unexpected end of data")
    return b"".join(pieces), None


def zip_item(member: Unzipped, ignored: Ignored) -> Iterator[Item]:
    """An image of a zip, if the member is one."""
    name = member.name.replace("\\", "/")
    if name.endswith("/"):
        return
    if why := unwanted(name):
        ignored.append((shown(name), why))
        return
    yield Item(tidy(name), *member.read(MAX_BYTES))
