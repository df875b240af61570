"""What is in memory is looked up, never assumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.host import page_cache as pagecache
from stoker.host.page_cache import bytes_from_storage, drop, held


def test_what_was_read_is_held_until_dropped(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(range(256)) * 4096)
    assert held([file]) == 1.0
    drop([file])
    if held([file]) == 1.0:
        pytest.skip("this file system keeps its files in memory")
    assert held([file]) == 0.0
    before = bytes_from_storage()
    assert file.read_bytes()[:4] == bytes(range(4))
    after = bytes_from_storage()
    assert before is not None and after is not None
    assert after - before >= 1 << 20
    assert held([file]) == 1.0


def test_what_cannot_be_known_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert held([empty]) is None
    assert held([tmp_path / "absent"]) is None
    monkeypatch.setattr(pagecache, "OWN_IO", str(tmp_path / "absent"))
    assert bytes_from_storage() is None
