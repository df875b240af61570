"""Shards in a folder: opened once, checked, and never more than a process may have open."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.data import shards as shards_module
from stoker.data.shards import FolderShards, print_note
from stoker.errors import StokerError


@pytest.fixture
def folder(tmp_path: Path) -> FolderShards:
    facts = []
    for number in range(4):
        name = f"{number:05d}.tar"
        (tmp_path / name).write_bytes(bytes([number]) * 100)
        facts.append({"name": name, "bytes": 100})
    return FolderShards(tmp_path, facts)


def test_a_shard_is_read(folder: FolderShards) -> None:
    into = bytearray(10)
    assert folder.read(2, memoryview(into), 95) == 5
    assert into == b"\2" * 5 + bytes(5)
    assert folder.open(2) is folder.open(2)
    assert [path.name for path in folder.files([1, 3])] == ["00001.tar", "00003.tar"]
    assert folder.is_local


def test_few_shards_are_open_at_a_time(
    folder: FolderShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "SHARDS_OPEN", 2)
    first = folder.open(0)
    for number in (1, 2, 3):
        folder.open(number)
    assert folder.open(0) is not first
    assert first.read(memoryview(bytearray(10)), 0) == 10  # open as long as it is in use


def test_a_shard_that_is_gone_or_was_changed_is_named(folder: FolderShards, tmp_path: Path) -> None:
    (tmp_path / "00000.tar").unlink()
    with pytest.raises(StokerError, match="cannot read shard"):
        folder.open(0)
    (tmp_path / "00001.tar").write_bytes(b"short")
    with pytest.raises(StokerError, match="has 5 bytes, not 100"):
        folder.open(1)


def test_a_folder_has_nothing_to_renew(folder: FolderShards) -> None:
    assert not folder.renew(0)
    folder.tell(print)
    folder.gather([(0, 0, 10)])
    folder.follow(lambda: [0])
    folder.forget([0])
    folder.close()


def test_a_note_is_printed_harmlessly(capsys: pytest.CaptureFixture[str]) -> None:
    print_note("s3://b/\x1b[31mset: it fails")
    assert capsys.readouterr().err == "note: s3://b/\\x1b[31mset: it fails\n"
