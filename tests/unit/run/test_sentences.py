"""Every sentence of the run directory, as users read it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from golden import check_golden
from run_records import record
from stoker.errors import StokerError
from stoker.recipe.recipe import Recipe
from stoker.run.directory import Run
from stoker.run.storage import Place, refused

DAMAGED = (
    *("", "{", "[" * 200_000, "[]", '{"format": "one"}', '{"format": 2}', "{}"),
    json.dumps(record(lanes="x")),
)


def test_refusals_golden(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    lines = []

    def note(error: StokerError) -> None:
        lines.append(f"{type(error).__name__}: {error}".replace(f"{tmp_path}/", ""))

    for text in (None, *DAMAGED):
        if text is not None:
            run.path.mkdir(exist_ok=True)
            (run.path / "run.json").write_text(text)
        with pytest.raises(StokerError) as refusal:
            run.record  # noqa: B018
        note(refusal.value)
    (run.path / "run.json").unlink()
    (run.path / "run.json").mkdir()
    with pytest.raises(StokerError) as refusal:
        run.record  # noqa: B018
    note(refusal.value)
    (run.path / "run.json").rmdir()
    run.create(record(data="pets", classes=["cat", "dog"], values=Recipe().values()), "")
    for classes in (["cat", "dog"], ["cat", "owl", "yak"]):
        with pytest.raises(StokerError) as refusal:
            run.recipe_changes(Recipe(), SimpleNamespace(fingerprint="beef", classes=classes))
        note(refusal.value)
    run.lock()
    with pytest.raises(StokerError) as refusal:
        Run(run.path).lock(patience_s=0)
    holder = (run.path / "lock").read_text()
    note(StokerError(str(refusal.value).replace(holder, "process 7 on host")))
    run.unlock()
    (run.path / "lock").unlink()
    (run.path / "lock").mkdir()
    with pytest.raises(StokerError) as refusal:
        run.lock()
    note(refusal.value)
    check_golden("run_refusals", lines)


def test_storage_sentences_golden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    owner = folder.stat().st_uid
    numbers = (errno.EDQUOT, errno.EROFS, errno.ENOTDIR, errno.EACCES, errno.EIO)
    lines = [str(refused(folder, OSError(number, os.strerror(number)))) for number in numbers]
    for inodes in (7, 0):
        disk = SimpleNamespace(f_files=9, f_favail=inodes, f_bavail=1, f_frsize=200_000)
        monkeypatch.setattr(os, "statvfs", lambda path, disk=disk: disk)
        lines.append(str(refused(folder, OSError(errno.ENOSPC, "full"))))
    place = Place(folder)
    place.hold()
    folder.rename(tmp_path / "elsewhere")
    lines.append(place.lost())
    shutil.rmtree(tmp_path / "elsewhere")
    lines.append(place.lost())
    texts = (line.replace(str(tmp_path), "FOLDER") for line in lines)
    check_golden("run_storage", [text.replace(f"user {owner}", "user 0") for text in texts])
