"""Training without output, and how long it says nothing."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from integration.processes import start
from measured import held, measured
from stoker.run.directory import Run

FLAGS = "--model resnet9_w4 --image-size 16 --batch-size 50 --epochs 1"
LONGEST_SILENCE_S, OF_IMPORT = 2.0, 1.6
"""The longest silence on quiet, quick cores; elsewhere, as a multiple of the time that importing
torch alone takes."""


@pytest.mark.exact
@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
def test_a_run_does_not_need_its_output(packed: Path, tmp_path: Path, streams: str) -> None:
    command = f"{shlex.quote(sys.executable)} -m stoker train {packed} --run run {FLAGS} {streams}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert Run(tmp_path / "run").finished
    assert len(Run(tmp_path / "run").steps()) == 8


@pytest.mark.alone
@measured()
def test_a_run_soon_says_what_it_does(packed: Path, tmp_path: Path) -> None:
    process = start(["train", str(packed), "--run", "run", *FLAGS.split()], tmp_path)
    assert process.stdout is not None
    lines = [(line.split()[0], time.perf_counter()) for line in process.stdout]
    assert process.wait() == 0
    words, times = zip(*lines, strict=True)
    assert words[:4] == ("run", "PyTorch", "saving", "global")
    silences_s = [later - earlier for earlier, later in pairwise(times[:4])]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    import_s = time.perf_counter() - began
    held(max(silences_s) < max(LONGEST_SILENCE_S, OF_IMPORT * import_s), silences_s, import_s)
