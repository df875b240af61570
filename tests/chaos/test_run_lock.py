"""One process at a time trains a run: others wait, or are told which one it is."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.errors import BadRequest
from stoker.run.directory import Run

HOLD = """
import sys, time
from stoker.run.directory import Run
run = Run(sys.argv[1])
run.lock()
print("held", flush=True)
time.sleep(float(sys.argv[2]))
"""


@contextlib.contextmanager
def holder(run: Run, seconds: float = 300) -> Iterator[subprocess.Popen[str]]:
    """Another process that trains the run."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


class TestLock:
    def test_the_second_is_told_who_trains_and_what_to_do(self, run: Run) -> None:
        with holder(run) as process, pytest.raises(BadRequest) as refusal:
            run.lock(patience_s=0.2)
        assert f"process {process.pid} on {socket.gethostname()}" in str(refusal.value)
        assert "name another --run" in str(refusal.value)

    def test_a_kill_frees_it(self, run: Run) -> None:
        with holder(run) as process:
            process.kill()
            process.wait(60)
            run.lock(patience_s=0)
        run.unlock()

    def test_it_waits_for_one_that_is_about_to_end(self, run: Run) -> None:
        with holder(run, seconds=0.5):
            run.lock(patience_s=120)
        run.unlock()

    def test_after_the_first_is_done_the_next_is_named(self, run: Run) -> None:
        run.lock(patience_s=0)
        run.unlock()
        with holder(run) as process, pytest.raises(BadRequest, match=f"process {process.pid} on"):
            run.lock(patience_s=0)

    def test_whether_a_run_is_being_trained_can_be_asked_without_disturbing_it(
        self, run: Run
    ) -> None:
        assert not run.is_running
        with holder(run) as process:
            assert run.is_running
            assert run.is_running
            assert process.poll() is None
            process.kill()
            process.wait(60)
            assert not run.is_running
        run.lock(patience_s=0)
        assert Run(run.path).is_running
        run.unlock()
        assert not run.is_running
