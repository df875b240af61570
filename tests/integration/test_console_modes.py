"""A terminal gets a live bar; a pipe gets plain lines without control characters."""

from __future__ import annotations

import sys
from pathlib import Path

import pexpect

from integration.processes import finish, start


def words(packed: Path) -> list[str]:
    flags = "--model resnet9_w4 --image-size 16 --batch-size 50 --epochs 6 --log-interval 0.5"
    return ["train", str(packed), "--run", "run", *flags.split()]


def test_a_pipe_gets_plain_lines(packed: Path, tmp_path: Path) -> None:
    code, printed = finish(start(words(packed), tmp_path))
    assert code == 0
    assert "\r" not in printed and "\x1b" not in printed
    lines = printed.splitlines()
    assert lines[:3] == [
        "run run",
        "PyTorch is loaded: building resnet9_w4",
        "saving a first checkpoint and reading it back",
    ]
    assert lines[3].startswith("global batch 50 = 1 rank x 50 images x 1 micro-batch")
    assert sum(line.startswith("evaluated at epoch") for line in lines) == 6
    assert lines[-2].startswith("finished: best top-1")
    assert lines[-1] == "report: run/report.html"


def test_a_terminal_gets_a_live_bar(packed: Path, tmp_path: Path) -> None:
    terminal = pexpect.spawn(
        sys.executable,
        ["-m", "stoker", *words(packed)],
        cwd=str(tmp_path),
        dimensions=(40, 160),
        encoding="utf-8",
        timeout=240,
    )
    terminal.expect("img/s")
    terminal.expect("finished: best top-1")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
