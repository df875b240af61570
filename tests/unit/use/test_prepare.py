"""An image file becomes the pixels of its packed copy, or is rejected as packing rejects it."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hostile
from hostile_jpeg import photo, saved
from stoker.data.images.decode_any import Rejected
from stoker.data.images.encode import Storage
from stoker.data.loading.crops import centre_boxes
from stoker.data.loading.render import RENDERERS
from stoker.data.packing.shard import process
from stoker.data.sources.item import Item
from stoker.use import prepare
from stoker.use.prepare import Pixels, Preparation

STORAGES = [
    Storage(),
    Storage(max_side=40),
    Storage(min_side=24, quality=50),
    Storage(codec="original"),
    Storage(codec="raw", max_side=0),
]


def as_packed(data: bytes, storage: Storage, size: int, tmp_path: Path) -> Pixels | str:
    """What evaluation shows of the image once it is packed, or why it is not."""
    try:
        row, stored = process(data, storage, tmp_path / "lock")
    except Rejected as error:
        return str(error)
    width, height = int(str(row["width"])), int(str(row["height"]))
    box = centre_boxes(0.875, np.array([float(width)]), np.array([float(height)]))[0].tolist()
    out = np.empty((size, size, 3), np.uint8)
    RENDERERS[storage.codec](memoryview(stored), width, height, box, False, out)
    return out


@pytest.mark.exact
@pytest.mark.parametrize("file", hostile.FILES, ids=lambda file: file.name)
def test_every_kind_of_file_has_the_pixels_of_its_copy(
    file: hostile.Hostile, tmp_path: Path
) -> None:
    data = file.make()
    # Whether an image is rejected does not depend on the storage; large ones take long.
    once = file.outcome.startswith("rejected") or file.found == hostile.SHRUNK
    for storage in STORAGES[:1] if once else STORAGES:
        for size in (16,) if once else (16, 40):
            out = np.full((size, size, 3), 77, np.uint8)
            reason = Preparation(storage, 0.875).fill(Item("x", data), out)
            expected = as_packed(data, storage, size, tmp_path)
            if isinstance(expected, str):
                assert (reason, out.any()) == (expected, False)
            else:
                assert reason is None
                np.testing.assert_array_equal(out, expected)


@pytest.mark.exact
def test_a_photograph_is_not_decoded_twice_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved(photo(), "JPEG")
    plain, direct = (np.empty((32, 32, 3), np.uint8) for _ in range(2))
    assert Preparation(Storage(), 1.0).fill(Item("x", data), plain) is None

    def refuse(*arguments: Any) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setitem(RENDERERS, "jpeg", refuse)
    assert Preparation(Storage(), 1.0).fill(Item("x", data), direct) is None
    np.testing.assert_array_equal(plain, direct)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE, errno.EACCES, errno.EIO])
def test_a_file_that_cannot_be_read_is_a_reason(
    number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "1.jpg"
    path.write_bytes(saved(photo(), "JPEG"))

    def refuse(*arguments: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("stoker.data.packing.shard.os.open", refuse)
    out = np.ones((8, 8, 3), np.uint8)
    reason = Preparation(Storage(), 1.0).fill(Item(str(path), None), out)
    assert (reason, out.any()) == (f"cannot read: {os.strerror(number)}", False)


@pytest.mark.parametrize("name", ["", "no.jpg", ".", "a\0b", "/dev/null", "x" * 5000])
def test_what_is_no_file_is_a_reason(name: str) -> None:
    out = np.ones((8, 8, 3), np.uint8)
    reason = Preparation(Storage(), 1.0).fill(Item(name, None), out)
    assert reason
    assert reason.isprintable()
    assert not out.any()


def test_a_reason_from_the_source_stays() -> None:
    out = np.ones((8, 8, 3), np.uint8)
    item = Item("x", None, "file larger than 256 MiB")
    assert Preparation(Storage(), 1.0).fill(item, out) == item.reason


def test_large_images_are_taken_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(prepare, "LARGE_PIXELS", 100)
    monkeypatch.setattr(prepare, "LARGE_BYTES", 100)
    path = tmp_path / "1.jpg"
    path.write_bytes(saved(photo(), "JPEG"))
    inside, most, lock = 0, 0, threading.Lock()
    decode = prepare.decode

    def counted(*arguments: Any) -> Any:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        try:
            return decode(*arguments)
        finally:
            with lock:
                inside -= 1

    monkeypatch.setattr(prepare, "decode", counted)
    preparation = Preparation(Storage(), 1.0)
    items = [Item(str(path), None), Item("x", path.read_bytes())] * 10
    threads = [
        threading.Thread(target=preparation.fill, args=(item, np.empty((8, 8, 3), np.uint8)))
        for item in items
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
