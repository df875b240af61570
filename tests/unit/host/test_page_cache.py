"""What is in the page cache is looked up, never assumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.host import page_cache
from stoker.host.page_cache import bytes_from_storage, cached_share, drop, is_cold


def test_what_was_read_is_cached_until_dropped(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 4096)
    assert cached_share([file]) == 1.0
    drop([file])
    if cached_share([file]) == 1.0:
        pytest.skip("this file system keeps its files in memory")
    assert cached_share([file]) == 0.0
    before = bytes_from_storage()
    assert file.read_bytes()[:4] == bytes(range(4))
    after = bytes_from_storage()
    assert before is not None and after is not None
    assert after - before >= 1 << 20
    assert cached_share([file]) == 1.0


def test_what_cannot_be_known_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert cached_share([empty]) is None
    assert cached_share([tmp_path / "absent"]) is None
    monkeypatch.setattr(page_cache, "OWN_IO", str(tmp_path / "absent"))
    assert bytes_from_storage() is None


def test_only_a_known_small_share_is_cold() -> None:
    assert is_cold(0.0) and is_cold(0.05)
    assert not is_cold(0.5)
    assert not is_cold(None)
