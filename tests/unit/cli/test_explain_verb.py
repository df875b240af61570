"""stoker explain, of a log instead of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cli import main
from stoker.errors import BAD_REQUEST, FINISHED
from training_logs import examples_new, simulate, timm


def test_a_log_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        examples_new(0, simulate("steady", 201)) + timm(0, simulate("compute", 201)), "utf-8"
    )
    assert main(["explain", str(path)]) == FINISHED
    printed = capsys.readouterr().out
    assert "1. a log of pytorch/examples" in printed
    assert "2. a log of timm" in printed
    assert printed.count("slowed by data") == printed.count("slowed by compute") == 1


def test_what_is_no_log_is_refused_with_what_would_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(bytes(range(256)) * 40)
    assert main(["explain", str(path)]) == BAD_REQUEST
    (line,) = capsys.readouterr().err.splitlines()
    assert "photo.jpg is not a run directory" in line
    assert all(name in line for name in ("pytorch/examples", "timm", "torchvision"))
