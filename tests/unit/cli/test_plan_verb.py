"""stoker plan --check: its exit code and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli import main
from stoker.errors import BAD_REQUEST, FINISHED


def test_claims_that_contradict_themselves_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claims.toml"
    file.write_text("[[claim]]\nprice_per_hour = 11.00\nbid = 10.00\n")
    assert main(["plan", "--check", str(file)]) == BAD_REQUEST
    assert capsys.readouterr().out.startswith("REFUSED: claim 1: ")


def test_a_warning_alone_is_no_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "claims.toml"
    file.write_text("[[claim]]\nlr = 3.3\nbatch_size = 2048\n")
    assert main(["plan", "--check", str(file)]) == FINISHED
    warning, summary = capsys.readouterr().out.splitlines()
    assert warning.startswith("warning: claim 1: ")
    assert summary == "OK: no contradiction in 1 claim"


def test_a_name_cannot_write_to_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "claims.toml"
    zones = 'zone = "a\\u001b[2J"\nvolume_zone = "{other}"'
    file.write_text(f'[[claim]]\nname = "x\\u001b[2J"\n{zones}\n')
    assert main(["plan", "--check", str(file)]) == BAD_REQUEST
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--check"], ["--check", "nowhere.toml"], ["--chek", "x"]])
def test_wrong_words(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == BAD_REQUEST
    assert capsys.readouterr().err.startswith("stoker: ")
