"""`stoker train` as users and schedulers meet it: signals, exit codes, several ranks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from integration.processes import ended, finish, slow_steps, start, steps_done, wait_until
from stoker.commit import sha256_file
from stoker.fleet.launcher import RENDEZVOUS_FILE
from stoker.run.directory import Run
from stoker.survive.checkpoints import Checkpoints

FLAGS = "--model resnet9_w8 --image-size 32 --batch-size 50 --eval-every 2"


def train(data: Path, epochs: int, *more: str) -> list[str]:
    return ["train", str(data), "--run", "run", *FLAGS.split(), "--epochs", str(epochs), *more]


@pytest.mark.rotates(3)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_stops_in_order_and_the_same_command_goes_on(
    packed: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = Run(tmp_path / "run")
    process = start(train(packed, 12), tmp_path, slow_steps())
    wait_until(lambda: steps_done(run, 1) >= 4, process)
    process.send_signal(number)
    code, printed = finish(process)
    assert code == 75, printed
    assert "the same command goes on from here" in printed
    assert ended(run)["reason"] == number.name
    name = Checkpoints(run.path).pointer("last")
    assert name is not None and int(name) == ended(run)["step"]

    code, printed = finish(start(train(packed, 12), tmp_path))
    assert code == 0, printed
    assert f"resumed at step {int(name):,}" in printed
    assert [event["step"] for event in run.steps()] == list(range(96))

    code, printed = finish(start(train(packed, 12), tmp_path))
    assert (code, "finished already" in printed) == (0, True)
    assert len(run.attempts()) == 2

    code, printed = finish(start(train(packed, 13), tmp_path))
    assert (code, "epochs 12 -> 13" in printed) == (2, True)


def test_two_ranks_by_the_real_launcher(packed: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    process = start(train(packed, 30, "--ranks", "2"), tmp_path, slow_steps())
    wait_until(lambda: steps_done(run, 1) >= 6, process)
    process.send_signal(signal.SIGTERM)
    code, printed = finish(process)
    assert code == 75, printed + (tmp_path / "run/launcher.log").read_text()
    assert "global batch 50 = 2 ranks x up to 26 images x 1 micro-batch" in printed

    process = start(train(packed, 30, "--ranks", "2"), tmp_path, slow_steps())
    wait_until(lambda: steps_done(run, 2) >= 6, process)
    process.kill()
    process.communicate()
    code, printed = finish(start(train(packed, 30, "--ranks", "2"), tmp_path))
    assert code == 0, printed + (tmp_path / "run/launcher.log").read_text()
    assert [event["step"] for event in run.steps()] == list(range(240))
    assert {event["images"] for event in run.steps()} == {50}


def test_a_signal_while_the_ranks_start_ends_them_in_order(packed: Path, tmp_path: Path) -> None:
    """It waits until they listen: they would die of it, each for itself."""
    process = start(train(packed, 30, "--ranks", "2"), tmp_path)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    wait_until(lambda: len(children.read_text().split()) == 2, process)
    process.send_signal(signal.SIGTERM)
    code, printed = finish(process)
    assert code == 75, printed + (tmp_path / "run/launcher.log").read_text()
    assert "starting stopped (SIGTERM); nothing was changed: the same command" in printed


def test_a_killed_rank_is_started_again_and_the_run_goes_on(packed: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    words = train(packed, 20, "--ranks", "2", "--checkpoint-interval", "0.2")
    process = start(words, tmp_path, slow_steps(until=30))
    saved = Checkpoints(run.path)
    wait_until(lambda: int(saved.pointer("last") or 0) > 0 and steps_done(run, 1) >= 4, process)
    victim = next(event for event in run.attempt_events(1, rank=1) if event["kind"] == "attempt")
    os.kill(victim["environment"]["process"], signal.SIGKILL)
    code, printed = finish(process)
    assert code == 0, printed + (tmp_path / "run/launcher.log").read_text()
    assert "rank 1 was killed (SIGKILL): going on from the newest checkpoint" in printed
    assert f"lost rank 1 on {socket.gethostname()}" in printed
    assert f"lost in the last attempt: rank 1 on {socket.gethostname()}" in printed
    assert len(run.starts()) == 2 and run.starts()[1]["step"] > 0
    assert [event["step"] for event in run.steps()] == list(range(160))


def test_a_run_is_trained_by_one_process_at_a_time(packed: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    process = start(train(packed, 2000), tmp_path)
    wait_until(lambda: steps_done(run, 1) >= 2, process)
    code, printed = finish(start(train(packed, 2000), tmp_path))
    assert code == 2
    assert f"process {process.pid}" in printed
    process.send_signal(signal.SIGTERM)
    assert finish(process)[0] == 75


def test_what_the_ranks_refuse_is_told_once(packed: Path, tmp_path: Path) -> None:
    words = train(packed, 3, "--ranks", "2", "--model", "vit_tiny_patch16_224")
    code, printed = finish(start(words, tmp_path))
    assert code == 2
    assert printed.count("does not take images of 32 px: use --image-size 224") == 1
    assert list(tmp_path.iterdir()) == []


def test_training_never_writes_to_the_packed_set(packed: Path, tmp_path: Path) -> None:
    def hashes() -> dict[Path, str]:
        return {path: sha256_file(path) for path in packed.rglob("*") if path.is_file()}

    before = hashes()
    assert finish(start(train(packed, 2), tmp_path))[0] == 0
    assert hashes() == before


def evaluate(data: Path, checkpoint: Path, world: int, batch_size: int, meeting: Path) -> str:
    """Evaluate on some ranks; what rank 0 counted."""
    script = Path(__file__).with_name("evaluate_rank.py")
    common = {
        **os.environ,
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        RENDEZVOUS_FILE: str(meeting),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(data), str(checkpoint), str(batch_size)],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks)
    return printed[0].strip()


def test_evaluation_counts_each_image_once_at_any_world_and_batch_size(
    packed: Path, tmp_path: Path
) -> None:
    # One epoch at a low rate: far from perfect, so that a miscount would show.
    assert finish(start(train(packed, 1, "--lr", "0.0005"), tmp_path))[0] == 0
    checkpoints = Checkpoints(tmp_path / "run")
    name = checkpoints.pointer("last")
    assert name is not None
    found = {
        (world, size): evaluate(
            packed, checkpoints.folder / name, world, size, tmp_path / f"meeting-{world}-{size}"
        )
        for world, size in ((1, 148), (1, 7), (2, 50), (3, 32))
    }
    assert len(set(found.values())) == 1, found
    assert next(iter(found.values())).split()[0] == "148"
