"""An export that is killed or stopped leaves nothing that counts, and what was there before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from exports import tiny_run
from integration.processes import finish, start
from stoker.faults import VARIABLE
from stoker.use.exported.files import is_export

WRITE = """
import sys
from pathlib import Path
from stoker import faults
from stoker.use.export.target import draft_of

faults.arm()
with draft_of(Path("out"), overwrite=True) as draft:
    (draft / "config.json").write_text('{"stoker": {}}')
    faults.reach("export:models")
    (draft / "text").write_text(sys.argv[1])
"""
"""An export without a model: writing and renaming alone, so that it takes no time."""
STAGES = ["export:models", "fsync", "export:written", "export:aside"]


def write(place: Path, text: str, at: str = "") -> int:
    rows = [{"fault": "kill", "at": at}] if at else []
    variables = {**os.environ, VARIABLE: json.dumps(rows)}
    command = [sys.executable, "-c", WRITE, text]
    return subprocess.run(command, cwd=place, env=variables, timeout=60).returncode


@pytest.mark.exact
@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("at", STAGES)
def test_a_killed_export_does_not_count(tmp_path: Path, at: str, replaces: bool) -> None:
    if replaces:
        assert write(tmp_path, "old") == 0
    elif at == "export:aside":
        pytest.skip("nothing is moved aside")
    out = tmp_path / "out"
    assert write(tmp_path, "new", at) == -signal.SIGKILL
    if at == "export:aside":  # between two renames: the old export is beside, complete
        (aside,) = tmp_path.glob(".out.*.old")
        assert (aside / "text").read_text() == "old"
    else:
        assert is_export(out) is out.exists() is replaces
    assert write(tmp_path, "newer") == 0
    assert (out / "text").read_text() == "newer"
    assert [item.name for item in tmp_path.iterdir()] == ["out"]


@pytest.mark.exact
@pytest.mark.rotates(3)
@pytest.mark.parametrize(
    ("fault", "at", "code"),
    [
        ("kill", "export:models", -signal.SIGKILL),
        ("term", "export:written", 75),
        ("full", "export:models", 1),
    ],
)
def test_the_command_ends_so_too(tmp_path: Path, fault: str, at: str, code: int) -> None:
    run_path, faults = tiny_run(tmp_path, epochs=1), json.dumps([{"fault": fault, "at": at}])
    process = start(["export", str(run_path), "models/out"], tmp_path, {VARIABLE: faults})
    ended, printed = finish(process, timeout_s=120)
    assert ended == code, printed
    assert "Traceback" not in printed
    left = [item.name for item in (tmp_path / "models").iterdir()]
    assert "out" not in left
    assert bool(left) is (fault == "kill")
