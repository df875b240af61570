"""The archives of tests/archives.py with what is to become of each."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial as later

import archives as ar
from hostile_jpeg import jpeg

PACKED, FAILED = 0, 1
MIB, GIB = 1 << 20, 1 << 30
EARLY = "ended early|damaged"


@dataclass(frozen=True)
class Archive:
    """An archive, and how `stoker pack` ends on it."""

    name: str
    make: Callable[[], bytes]
    code: int
    images: int = 8
    """Accepted, where it is packed."""
    rejected: int = 0
    says: str = ""
    """A pattern in what is said where it fails."""


def fails(name: str, make: Callable[[], bytes], says: str = EARLY) -> Archive:
    return Archive(name, make, FAILED, says=says)


GOOD_TAR, GOOD_ZIP = later(ar.tar, ar.good()), later(ar.zipped, ar.good())

TARS = [
    Archive("plain.tar", GOOD_TAR, PACKED),
    Archive("plain.tar.gz", lambda: gzip.compress(GOOD_TAR()), PACKED),
    Archive("plain.tar.bz2", lambda: bz2.compress(GOOD_TAR()), PACKED),
    Archive("plain.tar.xz", lambda: lzma.compress(GOOD_TAR()), PACKED),
    Archive("tar-named.zip", GOOD_TAR, PACKED),
    Archive("of-tars.tar", ar.tar_of_tars, PACKED),
    Archive("russian-doll.tar", later(ar.russian_doll, 400), PACKED),
    Archive("traversal.tar", later(ar.with_name, "photos/cat/../../../../evil.jpg"), PACKED),
    Archive("absolute.tar", later(ar.with_name, "/tmp/stoker-evil/evil.jpg"), PACKED, 9),
    Archive("drive.tar", later(ar.with_name, "C:\\evil\\evil.jpg"), PACKED),
    Archive("backslashes.tar", later(ar.with_name, "photos/cat/..\\..\\evil.jpg"), PACKED),
    Archive("not-utf8.tar", later(ar.raw_name, b"photos/cat/\xff\xfe.jpg"), PACKED, 9),
    Archive("nul.tar", later(ar.with_pax, ar.record("path", "photos/cat/a\0b.jpg")), PACKED, 9),
    Archive("newline.tar", later(ar.with_name, "photos/cat/a\nb.jpg"), PACKED, 9),
    Archive("twice.tar", lambda: ar.tar(ar.good() + ar.good()), PACKED),
    Archive("symlink.tar", later(ar.thing, tarfile.SYMTYPE, linkname="/etc/passwd"), PACKED),
    Archive("hardlink.tar", later(ar.thing, tarfile.LNKTYPE, linkname="photos/cat/0.jpg"), PACKED),
    Archive("device.tar", later(ar.thing, tarfile.CHRTYPE, devmajor=1, devminor=5), PACKED),
    Archive("pipe.tar", later(ar.thing, tarfile.FIFOTYPE), PACKED),
    Archive("unknown-kind.tar", later(ar.thing, b"?"), PACKED),
    Archive("sparse.tar", ar.sparse, PACKED),
    Archive("empty-image.tar", later(ar.thing, tarfile.REGTYPE), PACKED, 8, 1),
    Archive("long-name.tar", later(ar.long_name, 300), PACKED, 9),
    Archive("members.tar.gz", later(ar.many_members, 20_000, 180_000), PACKED, 8, 1),
    Archive("longer-than-allowed.tar.gz", later(ar.gz_bomb, 300 * MIB), PACKED, 8, 1),
    Archive("rest.tar", lambda: GOOD_TAR() + b"more" * 1000, PACKED),
    fails("name-of-2-MiB.tar", later(ar.long_name, 2 * MIB)),
    fails("pax-of-10-GB.tar", later(ar.pax_claiming, 10 * 10**9)),
    fails("pax-of-8-GB-less-1.tar", later(ar.pax_claiming, 0o77777777777)),
    fails("negative.tar", ar.negative_size),
    fails("sparse-map-cut.tar.gz", lambda: ar.gzipped(ar.sparse_map(2000))),
    fails("pax-negative.tar", later(ar.with_pax, ar.record("size", "-512"))),
    fails("bomb.tar.gz", later(ar.gz_bomb, GIB + 64 * MIB), "times its size"),
    fails("bomb.tar.xz", later(ar.xz_bomb, GIB + 64 * MIB), "times its size|memory|damaged"),
    fails("cut.tar", lambda: ar.cut(GOOD_TAR(), 0.5)),
    fails("cut-in-header.tar", lambda: GOOD_TAR()[: 2048 + 100]),
    fails("cut-between-members.tar", lambda: ar.tar(ar.good(), end=b"")),
    fails("cut.tar.gz", lambda: ar.cut(gzip.compress(GOOD_TAR()), 0.5)),
    fails("cut.tar.bz2", lambda: ar.cut(bz2.compress(GOOD_TAR()), 0.5)),
    fails("cut.tar.xz", lambda: ar.cut(lzma.compress(GOOD_TAR()), 0.5)),
    fails("flipped.tar.gz", lambda: gzip.compress(GOOD_TAR())[:-8] + b"\1" * 8),
    fails("header-damaged.tar", lambda: ar.tar(ar.good(), b"\x55" * 512, ar.tar(ar.good("b/")))),
]
# Where one header leads to the next, a reader that calls itself must not run out of stack.
TARS += [
    Archive(f"in-a-row-{kind.decode()}.tar", later(ar.headers_in_a_row, kind, 5000), FAILED)
    for kind in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE)
]

ZIPS = [
    Archive("plain.zip", GOOD_ZIP, PACKED),
    Archive("zip-named.tar", GOOD_ZIP, PACKED),
    Archive("streamed.zip", ar.streamed_zip, PACKED),
    Archive("streamed-stored.zip", later(ar.streamed_zip, zipfile.ZIP_STORED), PACKED),
    Archive("zip64.zip", ar.zip64, PACKED, 9),
    Archive("comment.zip", later(ar.zipped, ar.good(), lambda f: setattr(f, "comment", b"hi")), 0),
    Archive(
        "traversal.zip",
        lambda: ar.zipped([*ar.good(), ("photos/../../evil.jpg", ar.image(2, 0))]),
        PACKED,
    ),
    Archive("absolute.zip", later(ar.zip_with_raw_name, b"/tmp/stoker-evil/zip.jpg"), PACKED, 9),
    Archive("drive.zip", later(ar.zip_with_raw_name, b"C:\\evil\\of-zip\\a.jpg"), PACKED, 9),
    Archive("backslashes.zip", later(ar.zip_with_raw_name, b"photos\\cat\\..\\..\\a.jpg"), PACKED),
    Archive("not-utf8.zip", later(ar.zip_with_raw_name, b"photos/cat/\xff\xfe\xfd.jpg"), PACKED, 9),
    Archive("nul.zip", later(ar.zip_with_raw_name, b"photos/cat/a\0b.jpg"), PACKED, 9),
    Archive("twice.zip", lambda: ar.zipped(ar.good() + ar.good()), PACKED),
    Archive("wrong-sum.zip", ar.wrong_sum, PACKED, 7, 1),
    Archive("encrypted.zip", ar.encrypted, PACKED, 8, 1),
    Archive("longer-than-allowed.zip", later(ar.zip_bomb, 300 * MIB), PACKED, 8, 1),
    Archive("streamed-too-long.zip", later(ar.streamed_zip, zeros=300 * MIB), PACKED, 9, 1),
    fails("other-names.zip", ar.other_names_in_directory),
    fails("overlapping.zip", ar.overlapping),
    fails("missing-from-directory.zip", ar.missing_from_directory),
    fails("claims-4-GiB.zip", later(ar.size_in_header, 0xFFFFFFFE)),
    fails("claims-nothing.zip", later(ar.size_in_header, 0)),
    fails("cut.zip", lambda: ar.cut(GOOD_ZIP(), 0.5)),
    fails("cut-before-directory.zip", lambda: ar.directory(GOOD_ZIP())[0]),
    fails("cut-in-directory.zip", lambda: GOOD_ZIP()[:-100]),
    fails("streamed-cut.zip", lambda: ar.cut(ar.streamed_zip(), 0.4)),
    fails("empty.zip", later(ar.zipped, []), "zip"),
]

NO_ARCHIVES = [
    fails("text.tar", lambda: b"no archive at all\n" * 100, "."),
    fails("noise.tar", lambda: bytes(range(256)) * 40, "."),
    fails("picture.tar", jpeg, "."),
    fails("nothing.tar", lambda: b"", "."),
    fails("one-byte.tar", lambda: b"P", "."),
    fails("zeros.tar", lambda: bytes(10240), "."),
    fails("zeros.tar.gz", lambda: gzip.compress(bytes(10240)), "."),
    fails("text.tar.gz", lambda: gzip.compress(b"text " * 1000), "."),
    fails("only-text.zip", lambda: ar.zipped([("a/readme.txt", b"hello")]), "no training images"),
    fails("only-text.tar", lambda: ar.tar([("a/readme.txt", b"hello")]), "no training images"),
]
ALL = [*TARS, *ZIPS, *NO_ARCHIVES]
BY_PIPE = (
    *("plain.tar", "plain.tar.gz", "plain.tar.bz2", "plain.tar.xz", "plain.zip", "streamed.zip"),
    *("cut.tar", "cut.tar.gz", "cut.tar.bz2", "cut.tar.xz", "cut.zip", "cut-in-directory.zip"),
    *("traversal.tar", "traversal.zip", "of-tars.tar", "wrong-sum.zip", "rest.tar", "negative.tar"),
    *("in-a-row-L.tar", "sparse-map-cut.tar.gz", "text.tar", "nothing.tar", "one-byte.tar"),
)
"""Given through standard input as well."""
