"""Which failed tests `.ci/stage.py` may run once more."""

from __future__ import annotations

import json
import signal
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


def run_stage(folder: Path, tests: str) -> tuple[int, str, str]:
    """Exit code and output of a stage over some tests, and the closing lines that follow."""
    (folder / "test_them.py").write_text(tests)
    (folder / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    for name in ("cores", "measured", "shares", "waiting"):
        (folder / f"{name}.py").write_text((ROOT / f"tests/{name}.py").read_text())
    (folder / "pytest.ini").write_text(
        "[pytest]\npythonpath = .\nmarkers = exact: exact\n    rotates: rotates\n"
    )
    stage = [sys.executable, ROOT / ".ci/stage.py", folder / "results"]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*stage, *words], cwd=folder, capture_output=True, text=True)

    done = run("-q", "-p", "no:cacheprovider")
    return done.returncode, done.stdout, run().stdout


def test_what_passes_alone_is_flaky_and_counts(tmp_path: Path) -> None:
    code, output, closing = run_stage(tmp_path, TESTS)
    assert code == 0, output
    assert closing.splitlines() == [
        "FLAKY (passed alone, at the second try): test_them.py::test_flaky",
        "FLAKY (passed alone, at the second try): test_them.py::test_exact_but_late",
        "3 passed, 0 failed, 0 skipped",
    ]
    assert "2 failed: once more, alone" in output


@pytest.mark.parametrize("more", [EXACT, WRONG], ids=["exact", "wrong twice"])
def test_what_is_exact_or_fails_again_fails_the_stage(tmp_path: Path, more: str) -> None:
    code, output, closing = run_stage(tmp_path, TESTS + more)
    assert (code, closing) == (1, "1 passed, 3 failed, 0 skipped\n"), output


def test_many_failures_are_not_tried_again(tmp_path: Path) -> None:
    many = "".join(f"\ndef test_{n}():\n    assert not first_time('m{n}')\n" for n in range(11))
    code, output, closing = run_stage(tmp_path, TESTS + many)
    assert (code, closing) == (1, "1 passed, 13 failed, 0 skipped\n")
    assert "once more" not in output


TURNS = """
@pytest.mark.rotates(2)
def test_whose_turn_it_is_not():
    assert False

@pytest.mark.rotates(2)
def test_in_turn():
    assert not first_time("turn")
"""


def test_a_failed_test_is_run_again_whatever_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_ROTATION", "1")
    code, output, closing = run_stage(tmp_path, TESTS + TURNS)
    assert code == 0, output
    assert "FLAKY (passed alone, at the second try): test_them.py::test_in_turn" in closing
    assert closing.endswith("\n4 passed, 0 failed, 1 skipped\n")


SKIPPED = """
def test_that_is_skipped_at_the_second_try():
    if not first_time("skipped"):
        pytest.skip("not now")
    assert False
"""


def test_a_skip_at_the_second_try_is_no_pass(tmp_path: Path) -> None:
    code, output, closing = run_stage(tmp_path, TESTS + SKIPPED)
    assert (code, closing) == (1, "1 passed, 3 failed, 0 skipped\n"), output


def test_a_stage_that_cannot_begin_has_failed(tmp_path: Path) -> None:
    code, _, closing = run_stage(tmp_path, "import nothing_of_that_name")
    assert (code, closing) == (2, "0 passed, 1 failed, 0 skipped\n")


SLEEPER = """
import os, signal, subprocess, sys

def sleeper():
    program = "import os, time; os.setsid(); print(1, flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process
"""


def test_a_failed_test_leaves_no_process_behind(tmp_path: Path) -> None:
    tests = """
def test_leaves_a_process():
    (HERE / "pid").write_text(str(sleeper().pid))
    assert False
"""
    code, output, _ = run_stage(tmp_path, TESTS + SLEEPER + tests)
    assert code != 0, output
    process = Path("/proc") / (tmp_path / "pid").read_text()
    try:
        state = (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        state = "gone"
    assert state in ("gone", "Z")


def test_processes_begin_with_default_signals_under_nohup(tmp_path: Path) -> None:
    tests = """
def test_a_process_ends_at_a_hang_up():
    process = sleeper()
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == -signal.SIGHUP
"""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        code, output, _ = run_stage(tmp_path, SLEEPER + tests)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert code == 0, output


def test_the_outcomes_are_written_as_json(tmp_path: Path) -> None:
    run_stage(tmp_path, TESTS + EXACT)
    command = [sys.executable, "-m", "pytest", "-q", "--outcomes", "outcomes.json"]
    for name in ("flaky", "late", "exact"):
        (tmp_path / name).unlink()
    subprocess.run(command, cwd=tmp_path, capture_output=True)
    assert json.loads((tmp_path / "outcomes.json").read_text()) == {
        "passed": 1,
        "skipped": 0,
        "failed": {
            "test_them.py::test_flaky": True,
            "test_them.py::test_exact_but_late": True,
            "test_them.py::test_exact": False,
        },
    }
