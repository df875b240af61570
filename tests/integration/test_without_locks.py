"""A run on a file system whose locks of files do not work: leases beside it decide who trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.processes import finish, slow_steps, steps_done, wait_until
from stoker.errors import BAD_REQUEST, FAILED, FINISHED, INTERRUPTED
from stoker.faults import VARIABLE
from stoker.run.directory import Run
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.manifest import checkpoint_folder, read_manifest
from waiting import until

FLAGS = "--model resnet9_w4 --image-size 16 --batch-size 50 --epochs 2 --no-rehearse --no-report"
STEPS = 16
WITHOUT_LOCKS = """
import errno, fcntl, os, sys

def refuse(*given):
    raise OSError(errno.ENOSYS, "Function not implemented")

fcntl.flock = refuse
from stoker.cli import main
from stoker.locks import lease
lease.BEATS_S, lease.EXPIRES_S = 0.05, float(os.environ["EXPIRES_S"])
from stoker.train.attempt import session
session.LOCK_WAIT_S = 0.2
sys.exit(main())
"""
STANDS_STILL = {
    VARIABLE: json.dumps([{"fault": "stall", "at": "forward", "step": 6, "seconds": 1e4}])
}
pytestmark = pytest.mark.exact


class Trainers:
    """Starts commands that train one run, and ends those that are left."""

    def __init__(self, data: Path, folder: Path, leaving: ExitStack) -> None:
        self._data, self._folder, self._leaving = data, folder, leaving

    def __call__(
        self, *, expires_s: float = 1e6, faults: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        interval = ["--checkpoint-interval", "0.1"]
        words = ["train", str(self._data), "--run", "run", *FLAGS.split(), *interval]
        process = subprocess.Popen(
            [sys.executable, "-c", WITHOUT_LOCKS, *words],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                **(faults or {}),
                "PYTHONUNBUFFERED": "1",
                "EXPIRES_S": str(expires_s),
            },
        )
        self._leaving.callback(process.wait, 60)
        self._leaving.callback(process.kill)
        return process


@pytest.fixture
def train(packed: Path, tmp_path: Path) -> Iterator[Trainers]:
    with ExitStack() as leaving:
        yield Trainers(packed, tmp_path, leaving)


@pytest.fixture(scope="module")
def weights(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the weights of a run that nothing has disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with ExitStack() as leaving:
        code, printed = finish(Trainers(packed, folder, leaving)())
    assert code == FINISHED, printed
    return weights_of(Run(folder / "run"))


def weights_of(run: Run) -> str:
    assert run.finished
    assert [event["step"] for event in run.steps()] == list(range(STEPS))
    files = read_manifest(checkpoint_folder(run.path, "last"))["files"]
    return str(files["weights.safetensors"]["sha256"])


def move_to_another_machine(run: Run) -> None:
    """Let the newest lease be that of a process that nobody here can look for."""
    newest = max(path for path in (run.path / ".lock").iterdir() if path.name.isdecimal())
    newest.write_text(json.dumps({**json.loads(newest.read_text()), "boot": "another"}))


def test_the_second_is_refused_as_with_locks_and_follows_a_kill(
    train: Trainers, tmp_path: Path, weights: str
) -> None:
    run = Run(tmp_path / "run")
    first = train(faults=STANDS_STILL)
    wait_until(lambda: Checkpoints(run.path).names() != [], first)
    code, printed = finish(train())
    assert code == BAD_REQUEST, printed
    assert f"is being trained by process {first.pid} on " in printed
    assert "stop that process first, or name another --run" in printed
    assert "waiting for" not in printed and "Traceback" not in printed
    first.kill()
    first.wait(60)
    code, printed = finish(train())
    assert (code, "resumed at step" in printed) == (FINISHED, True), printed
    assert weights_of(run) == weights


@pytest.mark.rotates(3)
def test_a_holder_that_another_machine_lost_is_waited_for_and_followed(
    train: Trainers, tmp_path: Path, weights: str
) -> None:
    run = Run(tmp_path / "run")
    first = train(faults=slow_steps())
    wait_until(lambda: steps_done(run, 1) >= 4, first)
    first.kill()
    first.wait(60)
    move_to_another_machine(run)
    told = train()
    lines: list[str] = []
    assert told.stdout is not None
    until(lambda: lines.append(told.stdout.readline()) or "waiting for" in lines[-1], within_s=240)
    assert f"waiting for process {first.pid} on " in lines[-1]
    told.send_signal(signal.SIGTERM)
    code, printed = finish(told)
    assert code == INTERRUPTED, printed
    code, printed = finish(train(expires_s=1.0))
    assert (code, "resumed at step" in printed) == (FINISHED, True), printed
    assert weights_of(run) == weights


@pytest.mark.rotates(3)
def test_a_holder_that_is_frozen_and_woken_writes_no_more(
    train: Trainers, tmp_path: Path, weights: str
) -> None:
    run = Run(tmp_path / "run")
    first = train(faults=slow_steps())
    wait_until(lambda: steps_done(run, 1) >= 4, first)
    first.send_signal(signal.SIGSTOP)
    code, printed = finish(train(expires_s=1.0))
    assert (code, "waiting for" in printed) == (FINISHED, True), printed
    saved = sorted((run.path / "checkpoints").iterdir())
    first.send_signal(signal.SIGCONT)
    code, printed = finish(first)
    assert code == FAILED, printed
    assert "another process has taken it over while this one stood still" in printed
    assert "Traceback" not in printed
    assert sorted((run.path / "checkpoints").iterdir()) == saved
    assert weights_of(run) == weights
