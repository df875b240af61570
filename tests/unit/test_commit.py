"""A file is complete at any time, with its old contents or its new ones."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from pathlib import Path

import pytest

from stoker.commit import sha256_file, sha256_of, write_bytes, write_json

OLD, NEW = b"old " * 200_000, b"new " * 300_000


def test_a_file_is_written(tmp_path: Path) -> None:
    write_bytes(tmp_path / "file", NEW)
    assert (tmp_path / "file").read_bytes() == NEW


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_bytes(tmp_path / "file", OLD)
    write_bytes(tmp_path / "file", NEW)
    assert (tmp_path / "file").read_bytes() == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_bytes(file, OLD)
    hashes, done = set(), threading.Event()

    def read() -> None:
        while not done.is_set():
            hashes.add(sha256_of(file.read_bytes()))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(10):
        write_bytes(file, NEW)
        write_bytes(file, OLD)
    done.set()
    reader.join()
    assert hashes <= {sha256_of(OLD), sha256_of(NEW)}


def test_json_reads_back_and_keeps_its_letters(tmp_path: Path) -> None:
    value = {"classes": ["café", "犬"], "images": 3, "share": 0.1, "none": None}
    write_json(tmp_path / "file.json", value)
    text = (tmp_path / "file.json").read_text(encoding="utf-8")
    assert json.loads(text) == value
    assert "café" in text
    assert text.endswith("\n")


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_the_hash_of_a_file_is_the_hash_of_its_bytes(tmp_path: Path, size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "file").write_bytes(data[:size])
    expected = hashlib.sha256(data[:size]).hexdigest()
    assert sha256_file(tmp_path / "file") == sha256_of(data[:size]) == expected


class TestPoorFileSystems:
    """Mounts that lack a call: each answers in its own way."""

    @pytest.fixture(params=["rename", "fsync", "both"])
    def poor(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        def unable(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSYS, "Function not implemented")

        if request.param in ("rename", "both"):
            monkeypatch.setattr(os, "replace", unable)
            monkeypatch.setattr(Path, "replace", unable)
        if request.param in ("fsync", "both"):
            monkeypatch.setattr(os, "fsync", unable)
        return str(request.param)

    def test_files_are_written_all_the_same(self, poor: str, tmp_path: Path) -> None:
        for text in (b"old", b"new"):
            write_bytes(tmp_path / "file", text)
        assert (tmp_path / "file").read_bytes() == b"new"
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_other_errors_are_not_swallowed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_bytes(tmp_path / "file", b"text")
