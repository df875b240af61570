from __future__ import annotations

from pathlib import Path

import pytest

from stoker.survive.remote import folder_mark
from stoker.survive.remote.folder_mark import (
    FolderMark,
    earlier_holder,
    note_holder,
    read_mark,
    write_mark,
)
from stoker.survive.remote.records import Content


def test_a_mark_is_read_as_it_was_written(tmp_path: Path) -> None:
    mark = FolderMark("0" * 16, 3, 3, alone=True, sent=False)
    write_mark(tmp_path, mark)
    assert read_mark(tmp_path) == mark
    assert mark.is_newest(Content("0" * 16, 3))
    assert not mark.is_newest(Content("0" * 16, 4))
    assert mark.is_other(Content("1" * 16, 3)) and mark.is_other(Content())


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"run_id": 3}', '{"attempt": -1}', '{"alone": 1}', '{"more": 1}']
)
def test_a_damaged_mark_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / folder_mark.MARK).write_text(text)
    assert read_mark(tmp_path) == FolderMark()


def test_the_holder_of_another_boot_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_holder(tmp_path, "0" * 16)
    assert earlier_holder(tmp_path) == "0" * 16
    monkeypatch.setattr(folder_mark, "boot_id", lambda: "another")
    assert earlier_holder(tmp_path) == ""
