"""Ranks as plain processes: started alike, signalled once, ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from stoker.fleet.launcher import (
    RENDEZVOUS_FILE,
    environment,
    first_failure,
    launch,
    prepare_rank,
    signal_all,
    wait_for_all,
)


def test_the_environment_numbers_the_ranks_and_names_their_file() -> None:
    variables = [environment(rank, 3, Path("/private/ranks")) for rank in range(3)]
    assert [one["RANK"] for one in variables] == ["0", "1", "2"]
    assert (
        {one["WORLD_SIZE"] for one in variables}
        == {one["LOCAL_WORLD_SIZE"] for one in variables}
        == {"3"}
    )
    assert {one[RENDEZVOUS_FILE] for one in variables} == {"/private/ranks"}
    assert {one["GLOO_SOCKET_IFNAME"] for one in variables} == {"lo"}


@pytest.mark.timeout(300)
def test_odd_words_reach_every_rank_unharmed_and_no_shell_sees_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stoker.fleet.launcher.GRACE_S", 200)
    word = "my 'photos'; touch pwned $(touch pwned) *"
    log = tmp_path / "launcher.log"
    result = launch(2, [word], log)
    assert (result.codes, result.stop_signal) == ([2, 2], None)
    assert log.read_text().count(f"stoker: no verb called '{word}'") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["launcher.log"]


def python(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code])


@pytest.mark.timeout(300)
def test_one_that_fails_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.fleet.launcher.GRACE_S", 0.3)
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)"
    running = [python("raise SystemExit(1)"), python("import time; time.sleep(60)")]
    running.append(python(stubborn))
    wait_for_all(running)
    codes = [rank.returncode for rank in running]
    assert codes[0] == 1
    assert codes[1] in (-signal.SIGTERM, -signal.SIGKILL)
    assert codes[2] in (-signal.SIGTERM, -signal.SIGKILL)


@pytest.mark.timeout(300)
def test_an_orderly_stop_of_one_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.fleet.launcher.STRAGGLER_S", 200)
    running = [python("raise SystemExit(75)"), python("import time; time.sleep(1.0)")]
    wait_for_all(running)
    assert [rank.returncode for rank in running] == [75, 0]


NCCL_ABORTS = "import os, time; time.sleep(0.5); os.abort()"
"""What NCCL does in a rank some time after another one is lost."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "cause", "killed"),
    [
        (["import os; os.abort()", NCCL_ABORTS], "rank 0 was killed (SIGABRT)", True),
        ([NCCL_ABORTS, "import os; os.kill(os.getpid(), 9)"], "rank 1 was killed (SIGKILL)", True),
        # The others abort because of it: what failed by itself is not started again.
        ([NCCL_ABORTS, "raise SystemExit(1)", NCCL_ABORTS], "rank 1 failed", False),
        (["pass", "import os; os.abort()"], "rank 1 was killed (SIGABRT)", True),
    ],
)
def test_the_first_that_ended_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: list[str],
    cause: str,
    killed: bool,
) -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def start_one(*arguments: object) -> subprocess.Popen[bytes]:
        begun.append(python(ranks[len(begun)]))
        return begun[-1]

    monkeypatch.setattr("stoker.fleet.launcher.start", start_one)
    result = launch(len(ranks), [], tmp_path / "log")
    assert (result.cause, bool(result.killed)) == (cause, killed)


def test_of_those_that_ended_together_one_that_was_killed_is_named() -> None:
    assert first_failure([1, 1, -6]) == 2
    assert first_failure([None, 1, 0]) == 1
    assert first_failure([75, 0, None]) is None


@pytest.mark.timeout(300)
def test_one_that_the_launcher_killed_is_not_called_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others stopped in order; this one took too long to follow."""
    for name in ("GRACE_S", "STRAGGLER_S", "PATIENCE_S"):
        monkeypatch.setattr(f"stoker.fleet.launcher.{name}", 0.3)
    ignores = "import signal, time\nfor n in (10, 15): signal.signal(n, signal.SIG_IGN)\n"
    stubborn = subprocess.Popen(
        [sys.executable, "-c", f"{ignores}print(flush=True)\ntime.sleep(60)"],
        stdout=subprocess.PIPE,
    )
    assert stubborn.stdout
    stubborn.stdout.readline()
    running = [python("raise SystemExit(75)"), stubborn]
    assert wait_for_all(running) is None
    assert stubborn.returncode == -signal.SIGKILL


def test_a_signal_reaches_those_that_run() -> None:
    running = [python("import time; time.sleep(60)"), python("pass")]
    running[1].wait()
    signal_all(running, signal.SIGTERM)
    assert running[0].wait(timeout=60) == -signal.SIGTERM


prepare = partial(prepare_rank, os.getpid())


def test_a_signal_waits_for_a_rank_that_does_not_listen_yet() -> None:
    """Python takes a while to begin, and a signal would end it."""
    code = """
from stoker.survive.stopping import StopRequest
stop = StopRequest()
stop.listen()
print(stop.reason)
"""
    rank = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, preexec_fn=prepare
    )
    rank.send_signal(signal.SIGTERM)
    assert rank.communicate(timeout=60)[0] == "SIGTERM\n"
    assert rank.returncode == 0


def test_a_signal_reaches_ranks_that_start_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
import time
from stoker.survive.stopping import StopRequest
stop, give_up = StopRequest(), time.monotonic() + 60
stop.listen()
while not stop and time.monotonic() < give_up:
    time.sleep(0.01)
raise SystemExit(75 if stop else 1)
"""

    def start_one(*arguments: object) -> subprocess.Popen[bytes]:
        one = subprocess.Popen([sys.executable, "-c", code], preexec_fn=prepare)
        if not passed_on:
            passed_on.append(one)
            os.kill(os.getpid(), signal.SIGTERM)
        return one

    passed_on: list[object] = []
    monkeypatch.setattr("stoker.fleet.launcher.start", start_one)
    result = launch(2, [], tmp_path / "log")
    assert result.codes == [75, 75]
    assert result.stop_signal == signal.SIGTERM


def test_a_stop_request_from_before_the_launch_reaches_every_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_one(*arguments: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    monkeypatch.setattr("stoker.fleet.launcher.start", start_one)
    result = launch(2, [], tmp_path / "log", stop=lambda: True)
    assert result.codes == [-signal.SIGTERM] * 2
    assert result.stop_signal == signal.SIGTERM


def test_a_rank_whose_launcher_is_gone_does_not_begin() -> None:
    rank = subprocess.Popen([sys.executable, "-c", "print(1)"], preexec_fn=partial(prepare_rank, 1))
    assert rank.wait(60) == 1
