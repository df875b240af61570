"""The ranks of `stoker doctor` on one machine: measured, refused, stopped, alone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from integration.meeting import has_state
from measured import held, measured
from networks import GRADIENT
from ports import free_port
from stoker.doctor.ranks import RankOptions, measure_between_ranks
from stoker.errors import BadRequest, StokerError

HERE = Path(__file__).parent
pytestmark = [pytest.mark.alone, pytest.mark.timeout(600)]


def start(words: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
    """Measure the links alone, in a process with its own folder for temporary files."""
    (cwd / "tmp").mkdir(parents=True)
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, str(HERE / "doctor_network.py"), "5", *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(paths), "TMPDIR": str(cwd / "tmp")},
    )


def children(process: subprocess.Popen[str]) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(pid) for pid in text.split()]


def wait_for_ranks(process: subprocess.Popen[str], count: int) -> list[int]:
    give_up = time.monotonic() + 240
    while len(pids := children(process)) < count:
        assert process.poll() is None and time.monotonic() < give_up
        time.sleep(0.05)
    return pids


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_of_one_machine_are_measured(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = signal.getsignal(signal.SIGTERM)
    options = RankOptions(ranks, arguments=["--ranks", str(ranks)])
    report = measure_between_ranks(options, GRADIENT)
    assert report.world == ranks
    assert [pair.ranks for pair in report.pairs] == [
        (low, high) for low in range(ranks) for high in range(low + 1, ranks)
    ]
    for link in (*report.pairs, report.all_ranks):
        assert link.mbit > 0 and link.latency_s > 0 and link.small_s > 0
        assert link.port_mbit is None
        assert link.interface == "lo"
        assert link.counted is not None and link.counted > 0.95
    assert report.all_ranks.ranks == tuple(range(ranks))
    assert report.gradient_bytes == GRADIENT and report.gradient_s > 0
    json.dumps(report.as_data())
    assert not list(tmp_path.iterdir()), "nothing is left behind"
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (RankOptions(), "--ranks"),
        (RankOptions(nodes="2"), "--rendezvous"),
        (RankOptions(nodes="1", rendezvous="127.0.0.1:29400"), "--ranks"),
        (RankOptions(address="127.0.0.1"), "--address"),
        (RankOptions(nodes="2", rendezvous="here:29400", address="192.0.2.7"), "192.0.2.7"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: RankOptions, name: str) -> None:
    with pytest.raises(BadRequest, match=name):
        measure_between_ranks(options)


@pytest.mark.rotates(5)
@measured()
def test_a_host_that_never_comes_ends_the_wait(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_JOIN_S", "4")
    options = RankOptions(nodes="2", rendezvous=f"127.0.0.1:{port}")
    began = time.monotonic()
    with pytest.raises(StokerError, match=rf"127\.0\.0\.1:{port} within 4 s") as raised:
        measure_between_ranks(options)
    took_s = time.monotonic() - began
    assert raised.value.exit_code == 1
    held(took_s < 60, took_s)


@pytest.mark.rotates(5)
def test_another_key_is_refused_and_a_stop_signal_obeyed(tmp_path: Path, port: int) -> None:
    words = ["--nodes", "2", "--rendezvous", f"127.0.0.1:{port}"]
    first = start(words, tmp_path / "a")
    key = tmp_path / "a" / "runs" / ".doctor" / "rendezvous.key"
    give_up = time.monotonic() + 100
    # The first must have written its part before another comes to read it.
    while not has_state(port):
        assert first.poll() is None and time.monotonic() < give_up
        time.sleep(0.1)
    second = start(words, tmp_path / "b")
    printed, _ = second.communicate(timeout=240)
    assert second.returncode == 1, printed
    assert "has another key" in printed
    assert "runs/.doctor/rendezvous.key" in printed
    assert key.read_bytes().hex() not in printed
    first.send_signal(signal.SIGTERM)
    printed, _ = first.communicate(timeout=240)
    assert first.returncode == 75, printed
    assert "the same command starts again" in printed
    assert not [*(tmp_path / "a" / "tmp").iterdir(), *(tmp_path / "b" / "tmp").iterdir()]


@pytest.mark.rotates(5)
def test_two_hosts_with_one_address_are_one_machine(tmp_path: Path, port: int) -> None:
    """Both sides print the same result."""
    words = ["--nodes", "2", "--rendezvous", f"127.0.0.1:{port}", "--address", "127.0.0.1"]
    shared = tmp_path / "runs"
    both = []
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "runs").symlink_to(shared)
        shared.mkdir(exist_ok=True)
        both.append(start(words, tmp_path / name))
    printed = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert printed[0] == printed[1]
    assert "2 ranks on 1 host" in printed[0]
    assert "over lo" in printed[0]


@pytest.mark.rotates(5)
def test_a_killed_rank_ends_the_others_soon(tmp_path: Path) -> None:
    process = start(["--ranks", "2"], tmp_path / "a")
    ranks = wait_for_ranks(process, 2)
    os.kill(ranks[1], signal.SIGKILL)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 1, printed
    assert re.search(r"stoker: (lost a rank|a rank failed)", printed), printed
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    assert not list((tmp_path / "a" / "tmp").iterdir())


def test_a_stop_ends_all_ranks(tmp_path: Path) -> None:
    process = start(["--ranks", "2"], tmp_path / "a")
    ranks = wait_for_ranks(process, 2)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=240)
    assert process.returncode == 75, printed
    assert "the same command starts again" in printed
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


@pytest.mark.rotates(5)
@pytest.mark.parametrize("world", [2, 3])
def test_capacity_is_one_number_on_all_ranks(world: int, tmp_path: Path) -> None:
    script, file = str(HERE / "capacity_rank.py"), f"file://{tmp_path / 'meeting'}"
    ranks = [
        subprocess.Popen(
            [sys.executable, script, str(rank), str(world), file],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(world)
    ]
    answers = [json.loads(rank.communicate(timeout=300)[0]) for rank in ranks]
    assert len({answer["rate"] for answer in answers}) == 1
    assert answers[0]["rate"] > 0
