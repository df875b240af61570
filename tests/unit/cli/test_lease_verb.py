"""stoker lease: what a job's exit code becomes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from golden import check_golden
from stoker.cli import main
from stoker.cli.lease import DOWN_NOW, words_of
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, INTERRUPTED
from stoker.run.directory import Run


def make_run(path: Path, step: int, begins: list[int], used_up: bool = False) -> Path:
    """A run at a step, whose machines began at some steps."""
    file = Run(path).events_path(1, 0)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"kind": "attempt", "position": step, "step": step}) + "\n")
    (path / "leases").mkdir()
    for number, begin in enumerate(begins, 1):
        lines = [{"kind": "begin", "time": 1e9, "step": begin}]
        lines += [{"kind": "used up", "time": 1e9}] if used_up else []
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (path / "leases" / f"{number:06d}.jsonl").write_text(text)
    return path


@pytest.mark.parametrize(
    ("code", "step", "begins", "used_up", "becomes"),
    [
        (0, 9, [0], False, FINISHED),
        (2, 0, [0], False, BAD_REQUEST),
        (1, 9, [0], False, FAILED),
        (139, 9, [0], False, FAILED),
        (75, 9, [0], False, INTERRUPTED),
        (75, 9, [0], True, FAILED),
        (137, 9, [0], False, INTERRUPTED),
        (143, 9, [0], False, INTERRUPTED),
        (75, 9, [0, 9, 9], False, INTERRUPTED),
        (75, 9, [0, 9, 9, 9], False, FAILED),
        (137, 0, [0, 0, 0], False, FAILED),
        (75, 12, [0, 9, 9, 9], False, INTERRUPTED),
    ],
)
def test_75_goes_on_elsewhere_as_long_as_there_is_progress(
    tmp_path: Path, code: int, step: int, begins: list[int], used_up: bool, becomes: int
) -> None:
    run = make_run(tmp_path / "run", step, begins, used_up)
    assert main(["lease", str(run), "--ended", str(code)]) == becomes


def test_a_job_without_a_run_ends_as_it_did(tmp_path: Path) -> None:
    assert main(["lease", str(tmp_path / "none"), "--ended", "75"]) == INTERRUPTED
    assert main(["lease", str(tmp_path / "none"), "--ended", "1"]) == FAILED


def test_sentences_golden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run", 1200, [0])
    stuck = make_run(tmp_path / "stuck", 1200, [1200] * 3)
    used = make_run(tmp_path / "used", 1200, [0], used_up=True)
    for path, code in [(run, 0), (run, 2), (run, 1), (run, 75), (stuck, 75), (used, 75)]:
        main(["lease", str(path), "--ended", str(code)])
    check_golden("lease_ends", capsys.readouterr().out.splitlines())


def test_skypilots_own_way_uses_its_own_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SKY_RUNTIME_DIR", raising=False)
    usual = tmp_path / "skypilot-runtime" / "bin" / "python"
    assert words_of("skypilot") == [str(usual), "-I", "-c", DOWN_NOW]
    (tmp_path / ".sky").mkdir()
    (tmp_path / ".sky" / "python_path").write_text("/opt/sky/bin/python\n")
    assert words_of("skypilot")[0] == "/opt/sky/bin/python"
    assert words_of("sudo -n shutdown -h 'now'") == ["sudo", "-n", "shutdown", "-h", "now"]
