"""Injected faults are named before any verb begins, and in the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from golden import check_golden
from stoker import faults
from stoker.cli import VERBS, main
from stoker.fleet.launcher import ELASTIC
from stoker.run.directory import Run

pytestmark = pytest.mark.exact
ROWS = [{"fault": "kill", "at": "never", "rank": 7}, {"fault": "full", "at": "\x1b[31m"}]


@pytest.fixture(autouse=True)
def disarmed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.delenv(faults.VARIABLE, raising=False)
    faults.arm()


@pytest.mark.parametrize("verb", [*VERBS, "--version"])
def test_every_verb_names_them_once(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [verb] if verb == "--version" else [verb, "--help"]
    monkeypatch.setenv(faults.VARIABLE, json.dumps(ROWS))
    try:
        main(words)
    except SystemExit as end:
        assert not end.code
    notes = [line for line in capsys.readouterr().err.splitlines() if faults.VARIABLE in line]
    assert len(notes) == 1
    assert "kill at never" in notes[0] and "\x1b" not in notes[0]


def test_ranks_and_processes_without_faults_print_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(faults.VARIABLE, "")
    assert main(["--version"]) == 0
    monkeypatch.setenv(faults.VARIABLE, json.dumps(ROWS))
    monkeypatch.setenv(ELASTIC, "1")
    assert main(["--version"]) == 0
    assert capsys.readouterr().err == ""


MISTAKES = [
    "{",
    "[1]",
    "7",
    '[{"fault": "kill"}]',
    '[{"fault": "boom", "at": "x"}]',
    '["\x1b[31m"]',
]


def test_sentences_golden(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is no list of faults is a bad request, in one line."""
    monkeypatch.setenv(faults.VARIABLE, json.dumps(ROWS))
    assert main(["--version"]) == 0
    for text in MISTAKES:
        monkeypatch.setenv(faults.VARIABLE, text)
        assert main(["--version"]) == 2
    check_golden("cli_fault_note", capsys.readouterr().err.splitlines())


def test_a_run_records_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from samples import image_folder

    images = image_folder(tmp_path / "images", classes=2, images=4, val=2, size=(24, 24))
    flags = "--model resnet9_w4 --image-size 16 --batch-size 8 --epochs 1 --no-rehearse"
    monkeypatch.setenv(faults.VARIABLE, json.dumps(ROWS[:1]))
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(images), "--run", "run", *flags.split()]) == 0
    events = list(Run(tmp_path / "run").attempt_events(1))
    assert [event["words"] for event in events if event["kind"] == "faults"] == [faults.note()]
