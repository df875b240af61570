"""A file is complete at any time, with its old contents or its new ones."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from array import array
from pathlib import Path

import pytest

from stoker import faults
from stoker.commit import HashedWriter, sha256_file, sha256_of, write_bytes, write_json
from stoker.faults import Fault

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


class TestHashedWriter:
    @pytest.mark.parametrize(
        "sizes",
        [[], [0], [1], [1 << 20], [(1 << 20) + 1], [5, 3_000_000, 0, 7], [700_000] * 4],
        ids=str,
    )
    def test_has_the_bytes_and_the_hash_of_what_was_written(
        self, tmp_path: Path, sizes: list[int]
    ) -> None:
        parts = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
        with HashedWriter(tmp_path / "file") as file:
            assert [file.write(part) for part in parts] == sizes
        data = b"".join(parts)
        assert (tmp_path / "file").read_bytes() == data
        assert (file.bytes, file.sha256) == (len(data), sha256_of(data))

    def test_takes_views_of_any_kind(self, tmp_path: Path) -> None:
        with HashedWriter(tmp_path / "file") as file:
            file.write(memoryview(array("d", [1.5, 2.5])))
        assert (tmp_path / "file").read_bytes() == array("d", [1.5, 2.5]).tobytes()

    def test_raises_the_first_error_at_the_end_and_writes_nothing_after_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        once = [Fault("full", "file:piece", count=2), Fault("quota", "file:piece", count=3)]
        monkeypatch.setattr(faults, "_faults", once)
        with pytest.raises(OSError, match="No space left"):
            with HashedWriter(tmp_path / "file") as file:
                file.write(bytes(5 << 20))
                file.write(b"more")
        assert (tmp_path / "file").stat().st_size == 2 << 20

    def test_lets_another_error_pass(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(faults, "_faults", [Fault("full", "file:piece")])
        with pytest.raises(TypeError, match="its own"):
            with HashedWriter(tmp_path / "file") as file:
                file.write(bytes(2 << 20))
                raise TypeError("its own")
