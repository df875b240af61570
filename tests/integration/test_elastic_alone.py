"""One node of an elastic run on loopback: what is refused, what ends it, what is started again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from integration.meeting import has_state
from integration.processes import finish, start, steps_done, wait_until
from measured import held, measured
from ports import free_port
from stoker.run.directory import Run

pytestmark = pytest.mark.alone

FLAGS = "--model resnet9_w4 --image-size 24 --batch-size 50 --eval-every 1000"


def train(data: Path, port: int, *more: str, epochs: int = 3000, nodes: str = "1") -> list[str]:
    meeting = ["--nodes", nodes, "--rendezvous", f"127.0.0.1:{port}"]
    words = [*FLAGS.split(), "--epochs", str(epochs), *meeting, *more]
    return ["train", str(data), "--run", "run", *words]


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--nodes 2", "go together"),
        ("--rendezvous 127.0.0.1:29400", "go together"),
        ("--nodes 3:2 --rendezvous 127.0.0.1:29400", "1 <= MIN <= MAX"),
        ("--nodes 2 --rendezvous 29400", "HOST:PORT"),
    ],
)
def test_contradictions_are_refused(
    packed: Path, tmp_path: Path, words: str, complaint: str
) -> None:
    code, printed = finish(start(["train", str(packed), *words.split()], tmp_path))
    assert code == 2
    assert complaint in printed
    assert not list(tmp_path.iterdir())


def test_two_ranks_on_one_node_finish(packed: Path, tmp_path: Path, port: int) -> None:
    words = train(packed, port, "--ranks", "2", epochs=6)
    code, printed = finish(start(words, tmp_path))
    assert code == 0, printed
    assert f"waiting for nodes at 127.0.0.1:{port} (1)" in printed
    assert [step["images"] for step in Run(tmp_path / "run").steps()] == [50] * 48
    code, printed = finish(start(words, tmp_path))
    assert (code, "finished already" in printed) == (0, True)


def test_what_ranks_refuse_ends_the_node_with_their_message(
    packed: Path, tmp_path: Path, port: int
) -> None:
    code, printed = finish(start(train(packed, port, "--model", "nonsense"), tmp_path))
    assert code == 2
    assert printed.count("timm has no model called 'nonsense'") == 1


@measured()
def test_a_stop_signal_ends_the_wait_for_nodes(packed: Path, tmp_path: Path, port: int) -> None:
    process = start(train(packed, port, nodes="2"), tmp_path)
    wait_until(lambda: has_state(port), process)
    process.send_signal(signal.SIGTERM)
    sent_at = time.monotonic()
    code, printed = finish(process)
    held(time.monotonic() - sent_at < 5, printed)
    assert code == 75
    assert "stopped while it waited for nodes" in printed


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children]


def test_a_rank_that_dies_is_started_again_and_one_that_always_dies_is_not(
    packed: Path, tmp_path: Path, port: int
) -> None:
    run = Run(tmp_path / "run")
    process = start(train(packed, port, "--checkpoint-interval", "1"), tmp_path)
    wait_until(lambda: steps_done(run, 1) >= 5, process)
    os.kill(ranks_of(process)[0], signal.SIGKILL)
    wait_until(lambda: steps_done(run, 2) >= 5, process)
    os.kill(ranks_of(process).pop(), signal.SIGKILL)
    while process.poll() is None:
        # From here on no rank lives long enough to make a step.
        for rank in ranks_of(process):
            with suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)
        time.sleep(0.05)
    code, printed = finish(process)
    assert code == 1
    assert "failed twice without progress" in printed


@pytest.mark.exact
def test_what_a_stranger_writes_ends_the_node_to_be_started_again(
    packed: Path, tmp_path: Path, port: int
) -> None:
    """All keys are overwritten; the key of the run is in no log, event, command line or message."""
    run = Run(tmp_path / "run")
    process = start(train(packed, port), tmp_path)
    wait_until(lambda: steps_done(run, 1) >= 2, process)
    key = (run.path / "rendezvous.key").read_bytes()
    command = Path(f"/proc/{ranks_of(process)[0]}/cmdline").read_bytes()
    stranger = TCPStore("127.0.0.1", port, is_master=False)
    for name in stranger.list_keys():
        stranger.set(name, "\x1b[31mhostile")
    code, printed = finish(process)
    assert code == 75
    assert "no node of this run wrote" in printed
    assert not {"Traceback", "hostile"} & set(printed.split()) and "\x1b" not in printed
    kept = [path.read_bytes() for path in run.path.rglob("*") if path.is_file()]
    secrets = (key, key.hex().encode())
    assert sum(secret in content for content in [*kept, command] for secret in secrets) == 1
