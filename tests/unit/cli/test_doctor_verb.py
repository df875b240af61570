"""stoker doctor: what is refused, and what help costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from golden import check_golden
from stoker.cli import main
from stoker.errors import BAD_REQUEST


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["nowhere"], "nowhere"),
        (["--ranks", "0"], "--ranks"),
        (["--nodes", "2"], "--rendezvous"),
        (["--nodes", "x", "--rendezvous", "127.0.0.1:1"], "--nodes"),
        (["--nodes", "2", "--rendezvous", "here"], "--rendezvous"),
        (["--seconds", "nan"], "--seconds"),
        (["--json", "no/such/folder.json"], "--json"),
        (["--model", "resnet9", "--batch-size", "0"], "batch_size"),
        (["--modle", "x"], "'--model'"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    words: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == BAD_REQUEST
    assert name in capsys.readouterr().err


def test_messages_golden(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["nowhere"], ["--seconds", "nan"], ["--json", "no/such/folder.json"]):
        main(["doctor", *words])
    check_golden("doctor_verb", capsys.readouterr().err.splitlines())


def test_help_needs_none_of_the_large_libraries() -> None:
    code = (
        "import sys; from stoker.cli import doctor\n"
        "try: doctor.run(['--help'])\n"
        "except SystemExit: print(sorted({'torch', 'cv2', 'pyarrow'} & set(sys.modules)))"
    )
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert printed.splitlines()[-1] == "[]"
