"""The images in a tar or zip, one after the other, from a file or from standard input.

Invariants: an archive is read once, forward, and never unpacked to disk: a name in it is text and
never a path. No member is held in memory beyond the largest image allowed; a header that claims
more is refused. An archive that ends early or is damaged is an error, never a smaller data set. An
archive that unpacks to far more than its size is refused.
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

MAX_HEADER, MAX_HEADERS = 1 << 20, 8 << 20
"""Bytes of one tar header (names, attributes), and of all headers before one member."""
READ_BYTES = 1 << 18
POLL_S = 0.3
NO_IMAGE = "not an image by its name"
GZIP, BZIP2, XZ, ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
"""First bytes of compressed files."""
XZ_MEMORY = 128 << 20
"""More than the strongest setting of xz needs; an archive may ask for four gigabytes."""


class Stream(io.RawIOBase):
    """A stream that can be read. A subclass defines `take`, or `read` itself."""

    def readable(self) -> bool:
        return True

    def take(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        raise NotImplementedError

    def readinto(self, buffer: Any) -> int:
        data = self.take(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Forward(Stream):
    """A source that is read forward only: it can skip bytes but not go back."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source, self._offset = source, 0
        self.header_budget: int | None = None
        """Bytes that may still be read before the next member; None inside a member."""
        self.last_read = b""
        """The bytes read last: at the end of a tar they are the end mark, or damage."""

    def read(self, size: int = -1) -> bytes:
        if size < 0 or size > MAX_HEADER:
            raise tarfile.ReadError(f"a header claims {size:,} bytes")
        if self.header_budget is not None:
            self.header_budget -= size
            if self.header_budget < 0:
                raise tarfile.ReadError("its headers do not end")
        self.last_read = read_up_to(self._source, size)
        self._offset += len(self.last_read)
        return self.last_read

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int, whence: int = 0) -> int:
        if whence or offset < self._offset:
            raise tarfile.ReadError("a header points backwards")
        while block := self._source.read(min(offset - self._offset, READ_BYTES)):
            self._offset += len(block)
        return self._offset

    def seekable(self) -> bool:
        return True


class Pipe(Stream):
    """Standard input. A signal is handled while no data arrives, not only after a blocking read."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def read(self, size: int = -1) -> bytes:
        while not select.select([self._handle], [], [], POLL_S)[0]:
            pass
        return os.read(self._handle, size)


class Counted(Stream):
    """The bytes of an archive as they are read, counted. `head` was read before."""

    def __init__(self, source: IO[bytes] | Pipe, head: bytes = b"") -> None:
        self._source, self._head = source, head
        self.bytes = 0

    def take(self, size: int) -> bytes:
        block = self._head or self._source.read(size)
        data, self._head = block[:size], block[size:]
        self.bytes += len(data)
        return data


class Unxz(Stream):
    """One or several xz streams in a row, decompressed within bounded memory."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._lzma = lzma.LZMADecompressor(memlimit=XZ_MEMORY)

    def take(self, size: int) -> bytes:
        data = b""
        while not data:
            if self._lzma.eof:
                block = self._lzma.unused_data or self._source.read(READ_BYTES)
                if not block.strip(b"\0"):
                    return b""
                self._lzma = lzma.LZMADecompressor(memlimit=XZ_MEMORY)
            else:
                block = self._source.read(READ_BYTES) if self._lzma.needs_input else b""
                if not block and self._lzma.needs_input:
                    raise EOFError("unexpected end")
            data = self._lzma.decompress(block, size)
        return data


class Inflated(Stream):
    """Decompressed bytes. Raises Bomb when they become far more than the compressed ones."""

    def __init__(self, source: Any, compressed: Counted) -> None:
        self._source, self._compressed = source, compressed
        self._bytes = 0

    def take(self, size: int) -> bytes:
        data: bytes = self._source.read(size)
        self._bytes += len(data)
        refuse_bomb(self._bytes, self._compressed.bytes)
        return data


def read_up_to(source: IO[bytes] | Pipe, size: int) -> bytes:
    """`size` bytes, or fewer where the source ends."""
    blocks = []
    while size > 0 and (block := source.read(min(size, READ_BYTES))):
        blocks.append(block)
        size -= len(block)
    return b"".join(blocks)


def is_archive(path: Path) -> bool:
    """Whether the first bytes of a file are those of a tar, a zip or a compressed file."""
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
    """Yield every image of an archive; add the other members to `ignored`. Raises StokerError where
    the archive is damaged or ends early."""
    head = read_up_to(source, 8)
    counted = Counted(source, head)
    plain: Any = io.BufferedReader(counted, READ_BYTES)
    try:
        if head.startswith(b"PK\x03\x04"):
            for member in unzip(plain):
                yield from zip_item(member, ignored)
            return
        if head.startswith(b"PK"):
            raise StokerError(f"{name} is a zip without members, or one part of several")
        opened = decompressed(head, plain, name)
        if opened is not plain:
            opened = io.BufferedReader(Inflated(opened, counted), READ_BYTES)
        yield from tar_items(opened, name, "", ignored)
        # Read to the end: damage there is noticed, and a program that pipes data in can finish.
        rest = [block.strip(b"\0") != b"" for block in iter(lambda: opened.read(READ_BYTES), b"")]
        if any(rest):
            ignored.append(("(the rest)", "data after the archive's end mark"))
    except StokerError:
        raise
    except Bomb as error:
        raise StokerError(f"{name} {error}: refused, because it may be an attack") from error
    except Exception as error:
        # For a damaged archive the readers raise errors of many types, RecursionError included.
        raise StokerError(
            f"{name} is damaged or ended early ({one_reason(error)}): get a whole copy and run "
            "the same command again; finished work is kept"
        ) from error


def decompressed(head: bytes, plain: Any, name: str) -> Any:
    """The tar in an archive. Raises StokerError for an empty file or an unsupported compression."""
    if head.startswith(GZIP):
        return gzip.GzipFile(fileobj=plain)
    if head.startswith(BZIP2):
        return bz2.BZ2File(plain)
    if head.startswith(XZ):
        return io.BufferedReader(Unxz(plain), READ_BYTES)
    if head.startswith(ZSTD):
        advice = f"run zstd -dc {name} | stoker pack - OUT"
        raise StokerError(f"{name} is compressed with zstd: {advice}")
    if not head:
        raise StokerError(f"{name} is empty: expected a tar or zip")
    return plain


def tar_items(source: IO[bytes], name: str, inside: str, ignored: Ignored) -> Iterator[Item]:
    """Yield every image of a tar. A tar inside it counts as a folder, as in ImageNet's archives."""
    forward = Forward(source)
    forward.header_budget = MAX_HEADERS
    try:
        tar = tarfile.open(fileobj=forward, mode="r:")  # noqa: SIM115 - nothing of its own to close
    except tarfile.ReadError as error:
        if not inside and forward.tell() <= tarfile.BLOCKSIZE:
            raise StokerError(f"{name} is neither a tar nor a zip") from error
        raise tarfile.ReadError(f"not a tar: {one_reason(error)}") from error
    while True:
        forward.header_budget = MAX_HEADERS
        member = tar.next()
        forward.header_budget = None
        if member is None:
            break
        vars(tar)["members"].clear()  # else tarfile keeps every member in memory
        path = inside + member.name
        if member.isdir():
            continue
        reason = special_kind(member) or ignored_name(path)
        nested = reason == NO_IMAGE and path.endswith(".tar") and not inside
        if reason and not nested:
            ignored.append((shown(path), reason))
            continue
        content = tar.extractfile(member)
        assert content is not None
        if nested:
            yield from tar_items(content, name, path.removesuffix(".tar") + "/", ignored)
        else:
            yield Item(normalized(path), *read_member(content, member.size))
    if forward.last_read.strip(b"\0"):
        raise tarfile.ReadError(f"damaged at byte {max(forward.tell() - 512, 0):,}")
    if len(forward.last_read) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("no end mark")


def special_kind(member: tarfile.TarInfo) -> str | None:
    """The reason why a member of a tar is not a plain file; None for a plain file."""
    if member.islnk():
        return "hard link in an archive: pack the folder, or tar --hard-dereference"
    if member.issym():
        return "link in an archive: not followed"
    return "not a regular file" if not member.isreg() or member.sparse else None


def ignored_name(name: str) -> str | None:
    """The reason why a member is ignored because of its name; None for an image."""
    parts = PurePosixPath(normalized(name)).parts
    if ".." in parts:
        return "name leads out of the archive"
    if any(is_hidden(part) for part in parts):
        return "hidden"
    return None if is_image(name) else NO_IMAGE


def normalized(name: str) -> str:
    """A member's name as a path below the archive: `./a//b` and `/a/b` become `a/b`."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def read_member(file: IO[bytes], size: int) -> tuple[bytes | None, str | None]:
    """A member's bytes, or the reason why there are none. Raises ReadError where the tar ends."""
    if size > MAX_BYTES:
        return None, f"file larger than {MAX_BYTES >> 20} MiB"
    data = read_up_to(file, size)
    if len(data) < size:
        raise tarfile.ReadError("unexpected end of data")
    return data, None


def zip_item(member: Unzipped, ignored: Ignored) -> Iterator[Item]:
    """Yield the image that a member of a zip holds, if it holds one."""
    name = member.name.replace("\\", "/")
    if name.endswith("/"):
        return
    if reason := ignored_name(name):
        ignored.append((shown(name), reason))
        return
    yield Item(normalized(name), *member.read(MAX_BYTES))
