"""Several runs as a table: one line each, whatever state they are in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compat.kept import FORMAT_1
from golden import check_golden
from run_records import record
from stoker.cli import main
from stoker.errors import BAD_REQUEST, FINISHED
from stoker.run.directory import Run
from stoker.run.events import Events

KEPT = ("finished-jpeg", "interrupted-jpeg-2", "interrupted-raw-1")


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """Runs of every state, and directories that are none."""
    for name in KEPT:
        shutil.copytree(FORMAT_1 / name, tmp_path / name)
    new = Run(tmp_path / "a-name-that-is-much-too-long-for-a-table-1a2b3c4d5e")
    new.create(record(values={"model": "vit_base_patch16_224.augreg_in21k"}), "")
    long = Run(tmp_path / "long")
    long.create(record(), "")
    events = Events(long.events_path(long.new_attempt(), 0))
    events.write("attempt", position=0, step=0, epochs=300, samples=100, startup_s=1e7)
    events.write("end", outcome="failed", reason="no", parts={"forward": 1e7})
    events.close()
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "file").write_text("not a run")
    return sorted(str(path) for path in tmp_path.iterdir())


def test_a_table_golden(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A broken directory is a line with its reason, not the end of the others."""
    assert main(["explain", *runs]) == FINISHED
    lines = capsys.readouterr().out.splitlines()
    assert lines[1 + len(runs)] == ""
    assert max(map(len, lines)) <= 80
    check_golden("explain_table", lines)


def test_nothing_but_broken_directories_is_a_bad_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(tmp_path), str(tmp_path / "nowhere")]) == BAD_REQUEST
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines[1:]] == ["is not a run (no run.json)"] * 2


def test_one_run_is_explained_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(FORMAT_1 / KEPT[0])]) == FINISHED
    assert capsys.readouterr().out.startswith("resnet9_w2 on packed-jpeg (48 images, 3 classes)")
