"""stoker watch: what it accepts, and the one screen that it prints into a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from made_runs import RunMaker
from stoker.cli import main
from stoker.cli import watch as verb
from stoker.errors import BAD_REQUEST, FINISHED


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return RunMaker(tmp_path / "runs" / "photos", steps=60).attempt(0, 60).run.path


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["watch", *words]) == BAD_REQUEST
    return capsys.readouterr().err


def test_a_pipe_gets_one_plain_screen(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(run)]) == FINISHED
    text = capsys.readouterr().out
    assert "resnet18 on photos" in text and "bound by compute" in text and "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_a_folder_and_several_runs(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = RunMaker(tmp_path / "runs" / "other", steps=60, model="resnet50").attempt(0, 30)
    for words in ([str(tmp_path / "runs")], [str(run), str(other.run.path)]):
        assert main(["watch", "--once", *words]) == FINISHED
        text = capsys.readouterr().out
        assert "resnet18 on photos" in text and "resnet50 on photos" in text


def test_says_how_many_runs_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(14):
        RunMaker(tmp_path / str(number), steps=10)
    assert main(["watch", str(tmp_path)]) == FINISHED
    assert "newest 12 of 14 runs" in capsys.readouterr().out


def test_no_torch_and_no_textual_for_one_screen(run: Path) -> None:
    code = (
        "import sys; from stoker.cli import main; main(['watch', sys.argv[1]]); "
        "sys.exit(int('torch' in sys.modules or 'textual' in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code, run], check=True, capture_output=True)


@pytest.mark.parametrize("every", ["0.4", "0", "-1", "nan"])
def test_looks_are_not_too_frequent(
    run: Path, every: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "at least 0.5" in refusal(capsys, str(run), f"--every={every}")


class TestPaths:
    def test_a_folder_without_runs(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "note").touch()
        assert "is not a run and has no runs in it" in refusal(capsys, str(tmp_path))

    def test_a_file(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "note").touch()
        assert "is not a run" in refusal(capsys, str(tmp_path / "note"))

    def test_missing_ones_are_waited_for_alone(
        self, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        missing = str(tmp_path / "later")
        assert "name it alone to wait" in refusal(capsys, missing, str(run))
        assert "no folder to wait" in refusal(capsys, str(tmp_path / "no" / "later"))
        assert main(["watch", missing]) == FINISHED
        assert "waiting for" in capsys.readouterr().out

    def test_a_run_that_has_only_its_lock_is_waited_for(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "lock").touch()
        assert main(["watch", str(tmp_path)]) == FINISHED
        assert "waiting for" in capsys.readouterr().out

    def test_no_path_at_all(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "RUN" in refusal(capsys)


def test_says_how_to_install_the_extra(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for stream in (sys.stdout, sys.stdin):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(verb, "find_spec", lambda name: None)
    assert "pip install textual" in refusal(capsys, str(run))


def test_one_screen_on_a_terminal_has_colours(run: Path) -> None:
    screen, terminal = pty.openpty()
    code = "import sys; from stoker.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "watch", "--once", str(run)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, stdout=terminal, stdin=terminal, env=environment)
    os.close(terminal)
    text = b""
    try:
        while part := os.read(screen, 65536):
            text += part
    except OSError:
        pass  # the terminal was closed at the other end
    finally:
        os.close(screen)
    assert process.wait(20) == FINISHED
    assert b"\x1b[1;32mfinished" in text and b"training loss" in text
