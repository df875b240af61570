"""Which failed tests `.ci/stage.py` may run once more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
from pathlib import Path
import pytest
from measured import held
from waiting import until

HERE = Path(__file__).parent

def first_time(name):
    mark = HERE / name
    again = mark.exists()
    mark.touch()
    return not again

def test_right():
    pass

def test_flaky():
    assert not first_time("flaky")

@pytest.mark.exact
def test_exact_but_late():
    if first_time("late"):
        until(lambda: False, within_s=0.01)
"""
EXACT = """
@pytest.mark.exact
def test_exact():
    assert not first_time("exact")
"""
WRONG = """
def test_wrong():
    assert False
"""


def run_stage(folder: Path, tests: str) -> tuple[int, str, list[str]]:
    """Exit code and output of a stage over some tests, and the tests that it calls flaky."""
    (folder / "test_them.py").write_text(tests)
    (folder / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    for name in ("cores", "measured", "shares", "waiting"):
        (folder / f"{name}.py").write_text((ROOT / f"tests/{name}.py").read_text())
    (folder / "pytest.ini").write_text(
        "[pytest]\npythonpath = .\nmarkers = exact: exact\n    rotates: rotates\n"
    )
    flaky = folder / "flaky"
    done = subprocess.run(
        [sys.executable, ROOT / ".ci/stage.py", flaky, "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, flaky.read_text().split() if flaky.exists() else []


def test_what_passes_alone_is_flaky_and_counts(tmp_path: Path) -> None:
    code, output, flaky = run_stage(tmp_path, TESTS)
    assert code == 0, output
    assert flaky == ["test_them.py::test_flaky", "test_them.py::test_exact_but_late"]
    assert "2 failed: once more, alone" in output


@pytest.mark.parametrize("more", [EXACT, WRONG], ids=["exact", "wrong twice"])
def test_what_is_exact_or_fails_again_fails_the_stage(tmp_path: Path, more: str) -> None:
    code, output, flaky = run_stage(tmp_path, TESTS + more)
    assert (code, flaky) == (1, []), output


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    many = "".join(f"\ndef test_{n}():\n    assert not first_time('m{n}')\n" for n in range(11))
    code, output, flaky = run_stage(tmp_path, TESTS + many)
    assert (code, flaky) == (1, [])
    assert "once more" not in output


def test_the_failures_are_written_as_json(tmp_path: Path) -> None:
    run_stage(tmp_path, TESTS + EXACT)
    command = [sys.executable, "-m", "pytest", "-q", "--failures", "failures.json"]
    for name in ("flaky", "late", "exact"):
        (tmp_path / name).unlink()
    subprocess.run(command, cwd=tmp_path, capture_output=True)
    failures = json.loads((tmp_path / "failures.json").read_text())
    assert failures == {
        "test_them.py::test_flaky": True,
        "test_them.py::test_exact_but_late": True,
        "test_them.py::test_exact": False,
    }
