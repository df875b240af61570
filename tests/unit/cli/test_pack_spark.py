"""stoker pack --on: what is refused before a session begins, and what needs none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ports import free_port
from samples import image_folder
from stoker.cli import main
from stoker.errors import BAD_REQUEST, FAILED, FINISHED
from stoker.fleet.spark import master


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photographs, on a machine that seems to have pyspark and Java."""
    monkeypatch.setattr("stoker.cli.pack.require_installed", lambda: None)
    return image_folder(tmp_path / "photos", classes=2, images=6)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--on yarn", "--on must be slurm, spark://HOST:PORT or local[N]"),
        ("--on spark://head", "expected spark://HOST:PORT"),
        ("--on local[0]", "expected spark://HOST:PORT"),
        ("--on spark://head:7077 --workers 2", "--workers does not go with"),
        ("--on spark://head:7077 --tasks 2", "--tasks does not go with"),
        ("--on spark://head:7077 --partition long", "--partition goes with --on slurm"),
        ("--on spark://head:7077 --wait", "--wait goes with --on slurm"),
        ("--on spark://head:7077 --spark-conf memory=4g", "--spark-conf takes KEY=VALUE"),
        ("--on local[1] --spark-conf spark.stoker.countRows=x", "must be a whole number"),
        ("--spark-conf spark.executor.memory=4g", "--spark-conf goes with --on spark://"),
        ("--on slurm --spark-conf spark.executor.memory=4g", "--spark-conf goes with --on spark"),
        ("--on slurm --tasks 0", "--tasks must be at least 1"),
    ],
)
def test_a_wrong_flag_is_refused_before_anything_is_written(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, named: str
) -> None:
    assert main(["pack", str(photos), str(tmp_path / "out"), *words.split()]) == BAD_REQUEST
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line
    assert not (tmp_path / "out").exists()


def test_without_pyspark_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(master, "find_spec", lambda name: None)
    photos = image_folder(tmp_path / "photos", classes=2, images=6)
    words = ["pack", str(photos), str(tmp_path / "out"), "--on", "local[1]"]
    assert main(words) == BAD_REQUEST
    assert "pip install pyspark" in capsys.readouterr().err


def test_a_master_that_does_not_answer_is_told_and_nothing_is_left(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"spark://127.0.0.1:{free_port()}"
    assert main(["pack", str(photos), str(tmp_path / "out"), "--on", place]) == FAILED
    assert f"no Spark master answers at {place}" in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*.tar"))


def test_a_set_that_is_packed_needs_no_session(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pack", str(photos), str(tmp_path / "out")]
    assert main([*words, "--workers", "1"]) == FINISHED
    capsys.readouterr()
    assert main([*words, "--on", f"spark://127.0.0.1:{free_port()}"]) == FINISHED
    assert capsys.readouterr().out.startswith("packed already: ")
