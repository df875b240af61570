"""Commands of the selftest end in time, and a signal reaches none but their own processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.doctor.selftest import commands, lost_rank
from stoker.doctor.selftest.commands import TookTooLong, Train, is_of_run, send
from stoker.doctor.selftest.rows import QUICK, NotRun, Setup
from stoker.errors import StokerError
from stoker.run.directory import Run
from stoker.train.process_group import Ranks
from waiting import until


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """A command that lives for a minute in place of a training run."""
    setup = Setup(Ranks.join(), tmp_path, QUICK, 0.0)
    train = Train(setup, "some", "", "epochs = 1\n")
    sleeper = "import sys, time; print('here', flush=True); time.sleep(60)"
    monkeypatch.setattr(
        commands.subprocess,
        "Popen",
        lambda words, _popen=subprocess.Popen, **keys: _popen(
            [sys.executable, "-c", sleeper], **keys
        ),
    )
    monkeypatch.setattr(Train, "words", property(lambda self: []))
    return train


def test_a_command_ends_with_its_block(train: Train) -> None:
    with pytest.raises(ZeroDivisionError), train.started() as process:
        until(lambda: "here" in train.printed())
        raise ZeroDivisionError
    assert process.returncode == -signal.SIGKILL


def test_a_wait_ends(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "SHORTEST_S", 0.2)
    with pytest.raises(TookTooLong, match=r"waited 0 s for the end of the command"):
        train.finish()


def test_an_end_that_is_not_allowed_shows_the_last_line(train: Train) -> None:
    train.log.write_text("first\nlast\n\n")
    train.require(0, [0, 75])
    with pytest.raises(StokerError, match="ended with 1; its last line: last"):
        train.require(1, [0, 75])
    with pytest.raises(StokerError, match="no checkpoint"):
        train.weights()


@pytest.mark.exact
def test_a_signal_goes_to_a_process_of_the_run_alone(tmp_path: Path) -> None:
    run, other = Run(tmp_path / "run"), Run(tmp_path / "other")
    words = [sys.executable, "-c", "input()", "--run", str(run.path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        until(lambda: is_of_run(process.pid, run))
        send(process.pid, signal.SIGKILL, other)
        assert process.poll() is None
        send(process.pid, signal.SIGKILL, run)
        assert process.wait(60) == -signal.SIGKILL
    send(process.pid, signal.SIGKILL, run)  # it is gone
    assert not is_of_run(os.getpid(), run)


def test_two_ranks_need_two_gpus_where_there_is_one(train: Train) -> None:
    train.setup.gpus = 1
    with pytest.raises(NotRun, match="needs 2 GPUs"):
        lost_rank.measure_killed(train.setup)


def test_a_command_that_ends_too_early_is_not_waited_for(train: Train) -> None:
    with train.started() as process:
        process.kill()
        with pytest.raises(StokerError, match="ended with -9"):
            lost_rank.wait(train, process, lambda: None, "a rank that never comes")
