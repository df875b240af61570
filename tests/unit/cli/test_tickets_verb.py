from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from golden import check_golden
from pages import commands_in
from samples import image_folder
from stoker.cli import main
from stoker.cli.tickets import parser
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from stoker.errors import BAD_REQUEST
from tiny_runs import tiny_set

DOCUMENT = Path(__file__).parents[3] / "docs" / "tickets.md"


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a packed set, in which commands are given."""
    tiny_set(tmp_path).rename(tmp_path / "photos-packed")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_golden() -> None:
    check_golden("help_tickets", parser().format_help().splitlines())


def test_mistakes_golden(desk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lone = image_folder(desk / "lone", classes=2, images=2, size=(8, 8), suffix="png")
    pack(lone, desk / "lone-packed", storage=Storage(codec="raw"), val_share=0, workers=1)
    for words in (
        "absent",
        "lone-packed",
        "photos-packed --keep 0,20",
        "photos-packed --keep many",
        "photos-packed --rewind 1,2",
        "photos-packed --epochs 4 --rewind 0,4ep",
        "photos-packed --rounds 20",
        "photos-packed --replicates 0",
        "photos-packed --replicates 10000000",
        "photos-packed --baselines random",
        "photos-packed --pretrained --model resnet18",
        "photos-packed --model resnet5O",
        "photos-packed --workers 0",
        "photos-packed --kep 20",
        "photos-packed --json nowhere/figures",
    ):
        assert main(["tickets", *words.split(), "--status"]) == BAD_REQUEST, words
    check_golden("tickets_mistakes", capsys.readouterr().err.splitlines())
    assert not (desk / "tickets").exists()


def test_the_commands_of_the_document_are_planned(
    desk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [shlex.split(line) for line in commands_in(DOCUMENT.read_text())]
    studies = [words[1:] for words in given if words[1] == "tickets"]
    assert studies
    for words in studies:
        assert main([*words, "--status"]) == 0
        assert "cells:" in capsys.readouterr().out
    assert not (desk / "tickets").exists()


def test_no_torch_before_a_cell_runs(desk: Path) -> None:
    program = (
        "import sys; from stoker.cli import main; "
        "code = main(['tickets', 'photos-packed', '--status']); "
        "sys.exit(code or ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=desk, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
