"""Processes below a shell, watched and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from stoker.errors import BadRequest
from stoker.fleet.sky.processes import WatchedProcess, status_of


def shell(script: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    return process


def test_what_is_below_a_shell_is_stopped_and_the_shell_goes_on() -> None:
    process = shell("setsid sleep 600 & sleep 600 & echo ready; wait; exit 7")
    watched = WatchedProcess.of(process.pid)
    assert len(watched.below()) == 2
    watched.ask_to_stop()
    assert process.wait(timeout=30) == 7
    assert not watched.is_alive
    assert watched.below() == []


def test_a_stopped_process_gets_to_see_the_request() -> None:
    process = shell("echo ready; sleep 600; exit 7")
    watched = WatchedProcess.of(process.pid)
    while not watched.below():
        time.sleep(0.01)
    (sleeper,) = watched.below()
    os.kill(sleeper, signal.SIGSTOP)
    watched.ask_to_stop()
    assert process.wait(timeout=30) == 7


def test_all_of_it_is_killed() -> None:
    process = shell("trap '' TERM; echo ready; while :; do sleep 600; done")
    watched = WatchedProcess.of(process.pid)
    while not watched.below():
        time.sleep(0.01)
    (sleeper,) = watched.below()
    watched.kill()
    assert process.wait(timeout=30) == -signal.SIGKILL
    while status_of(sleeper):
        time.sleep(0.01)


def test_a_process_that_ended_is_not_alive_while_its_parent_sleeps() -> None:
    process = subprocess.Popen(["true"])
    time.sleep(0.2)
    with pytest.raises(BadRequest, match="no such process"):
        WatchedProcess.of(process.pid)
    process.wait()


def test_another_process_with_the_number_is_another_one() -> None:
    assert WatchedProcess.of(os.getpid()).is_alive
    assert not WatchedProcess(os.getpid(), "1").is_alive
