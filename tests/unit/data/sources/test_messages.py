"""The messages of the sources and of image decoding, each kept once in tests/golden."""

from __future__ import annotations

import io
import socket
import ssl
import tarfile
import zipfile
from collections.abc import Callable
from functools import partial
from http.client import BadStatusLine, IncompleteRead, InvalidURL, LineTooLong
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from golden import check_golden
from stoker.data.images import decode_any
from stoker.data.images.decode_any import Rejected, inspect
from stoker.data.images.encode import Storage
from stoker.data.sources.archives import images_in
from stoker.data.sources.folder import list_folder
from stoker.data.sources.http import Failed, Transfer, failure, parse_target
from stoker.data.sources.layout import Ignored
from stoker.data.sources.tables import open_table, rows
from stoker.errors import StokerError


def message(call: Callable[[], object], *kinds: type[Exception]) -> str:
    with pytest.raises(kinds or StokerError) as raised:
        call()
    return str(raised.value)


ERRORS: list[Exception] = [
    URLError("unknown url type: socks5"),
    URLError(TimeoutError()),
    URLError(socket.gaierror(socket.EAI_NONAME, "?")),
    URLError(ssl.SSLCertVerificationError()),
    URLError(ConnectionRefusedError()),
    URLError(OSError(113, "No route to host")),
    ConnectionResetError(),
    IncompleteRead(b""),
    InvalidURL("http://jane:sesame@h"),
    BadStatusLine("?"),
    LineTooLong("header"),
]


def test_download_reasons_golden() -> None:
    secure = parse_target("https://a.example/")
    calls = [
        lambda: parse_target("ftp://a.example/"),
        lambda: parse_target("http://"),
        lambda: parse_target("http://a.example/", secure),
    ]
    refusals = [
        str(Transfer(0, redirected, allow_private).refusal())
        for redirected, allow_private in ((True, True), (False, False), (True, False))
    ]
    lines = [message(call, Failed) for call in calls] + refusals
    check_golden(
        "sources_download",
        [*lines, *(str(failure(error, "HOST", Transfer(0), begun=False)) for error in ERRORS)],
    )


def tar_of(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("a/link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "b.jpg"
        tar.addfile(link)
    return file.getvalue()


def zip_of(name: str, data: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, data)
    return file.getvalue()


def test_archive_messages_golden() -> None:
    def read(data: bytes) -> Ignored:
        ignored: Ignored = []
        list(images_in(io.BytesIO(data), "NAME", ignored))
        return ignored

    tar, packed = tar_of(("a/1.jpg", b"x" * 2000)), zip_of("a/1.jpg", b"x" * 2000)
    broken = [
        b"",
        b"no archive" * 100,
        b"PK\x05\x06" + bytes(18),
        b"\x28\xb5\x2f\xfd" + bytes(100),
        tar[:1500],
        packed[:1500],
        packed.replace(b"a/1.jpg", b"a/2.jpg", 1),
    ]
    names = ["a/.hidden.jpg", "a/notes.txt", "../1.jpg"]
    passed_over = read(tar_of(*((name, b"x") for name in names)))
    check_golden(
        "sources_archives",
        [
            *(message(partial(read, data)) for data in broken),
            *(f"{name}: {reason}" for name, reason in passed_over),
        ],
    )


def test_folder_and_table_messages_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("list.csv").write_text("picture,kind\na.jpg,cat\n")
    Path("odd.parquet").write_bytes(b"PAR1")
    pq.write_table(pa.table({"image": [1], "label": [1]}), "numbers.parquet")
    Path("rows.csv").write_text("path,label,split\n,cat,train\na.jpg,,train\na.jpg,cat,maybe\n")
    ignored: Ignored = []
    list(rows(open_table((Path("rows.csv"),), {}), ignored))
    calls = [
        lambda: list_folder("missing"),
        lambda: list_folder("empty"),
        lambda: open_table((Path("list.csv"),), {}),
        lambda: open_table((Path("list.csv"),), {"image": "photo"}),
        lambda: open_table((Path("numbers.parquet"),), {}),
    ]
    unreadable = message(lambda: open_table((Path("odd.parquet"),), {})).partition(" (")[0]
    check_golden(
        "sources_tables",
        [
            *(message(call) for call in calls),
            unreadable.partition(":")[0],
            *(f"{name}: {reason}" for name, reason in ignored),
        ],
    )


def test_image_messages_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    Image.fromarray(np.zeros((9, 12, 3), np.uint8)).save(file, "PNG")
    png = file.getvalue()
    start = png.index(b"IDAT") + 4
    damaged = png[:start] + bytes([png[start] ^ 1]) + png[start + 1 :]
    bad = (b"", b"no image", damaged)
    lines = [message(partial(inspect, data), Rejected) for data in bad]
    monkeypatch.setattr(decode_any, "MAX_PIXELS", 100)
    lines.append(message(lambda: inspect(png), Rejected))
    settings = [Storage(codec="bmp"), Storage(quality=0), Storage(max_side=-1)]
    check_golden("images", [*lines, *(message(storage.check) for storage in settings)])
