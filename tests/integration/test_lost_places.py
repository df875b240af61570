"""What a run stands on is taken away: its terminal is closed, its directory is moved."""

from __future__ import annotations

import os
import pty
import signal
import sys
from pathlib import Path

import pytest

from integration.processes import ended, finish, slow_steps, start, steps_done, wait_until
from stoker.run.directory import Run
from waiting import until

FLAGS = "--model resnet9_w4 --image-size 16 --batch-size 50 --epochs 3 --no-rehearse"
STEPS = 24
pytestmark = pytest.mark.exact


def train(data: Path, run: str, ranks: int = 1) -> list[str]:
    words = ["train", str(data), "--run", run, *FLAGS.split(), "--checkpoint-interval", "0.1"]
    return [*words, "--ranks", str(ranks)]


@pytest.mark.rotates(3)
@pytest.mark.parametrize(("ranks", "nohup"), [(1, False), (2, False), (1, True)])
def test_a_closed_terminal(packed: Path, tmp_path: Path, ranks: int, nohup: bool) -> None:
    """The system sends SIGHUP, and every later write to the terminal fails."""
    run = Run(tmp_path / "run")
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
        os.chdir(tmp_path)
        words = [sys.executable, "-m", "stoker", *train(packed, "run", ranks)]
        os.execve(words[0], words, {**os.environ, **slow_steps()})
    until(lambda: len(os.read(terminal, 1 << 16)) and steps_done(run, 1) >= 4, within_s=240)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == (0 if nohup else 75)
    end = ended(run)
    if nohup:
        assert end["outcome"] == "finished"
        return
    assert (end["reason"], end["saved"]) == ("SIGHUP", True)
    code, printed = finish(start(train(packed, "run", ranks), tmp_path))
    assert code == 0, printed
    assert f"resumed at step {end['step']:,}" in printed
    assert [event["step"] for event in run.steps()] == list(range(STEPS))


@pytest.mark.rotates(3)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_of_two_ranks_is_moved(packed: Path, tmp_path: Path, replaced: bool) -> None:
    run = Run(tmp_path / "run")
    process = start(train(packed, "run", ranks=2), tmp_path, slow_steps())
    wait_until(lambda: steps_done(run, 1) >= 4, process)
    run.path.rename(tmp_path / "moved")
    if replaced:
        run.path.mkdir()
    code, printed = finish(process)
    assert code == 1, printed
    assert printed.count("stoker: run is no longer the directory of this run") == 1
    assert "Traceback" not in printed
    assert list(run.path.rglob("*")) == []
    assert run.path.exists() == replaced
    moved = Run(tmp_path / "moved")
    code, printed = finish(start(train(packed, "moved", ranks=2), tmp_path))
    assert code == 0, printed
    assert [event["step"] for event in moved.steps()] == list(range(STEPS))
