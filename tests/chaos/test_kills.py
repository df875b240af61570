"""SIGKILL at 20 moments of a run, the same command each time: the result is the same to the bit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from chaos.trainers import Trainers, assert_bit_equal, random_kills
from stoker.run import Run

KILLS = 20
FLAGS = {
    "jpeg": "--model resnet9_w4 --image-size 24 --ema --label-smoothing 0.1 --mixup-alpha 0.2 "
    "--cutmix-prob 0.3 --micro-batch 10 --clip-grad 1",
    "raw": "--model resnet9_w4 --image-size 16 --optimizer adamw --lr 0.002 --ema --crop pad "
    "--scheduler onecycle --warmup-epochs 1",
}


def command(data: Path, run: Path, codec: str, epochs: int = 60) -> list[str]:
    flags = "--batch-size 32 --checkpoint-interval 0.1 --eval-every 4 --threads 2 --no-rehearse"
    flags += f" --epochs {epochs}"
    return ["train", str(data), "--run", str(run), *flags.split(), *FLAGS[codec].split()]


@pytest.mark.parametrize("codec", ["jpeg", "raw"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_twenty_kills_leave_no_trace(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path, ranks: int, codec: str
) -> None:
    reference = Run(tmp_path / "reference")
    argv = command(packed_sets[codec], reference.path, codec)
    assert trainers.train(argv, tmp_path / "reference.log", ranks=ranks) == [0] * ranks

    killed = Run(tmp_path / "killed")
    argv = command(packed_sets[codec], killed.path, codec)
    deaths: Counter[str] = Counter()
    for number, kill in enumerate(random_kills(KILLS, seed=ranks)):
        codes = trainers.train(
            argv, tmp_path / "killed.log", ranks=ranks, **kill.arguments(rank=number % ranks)
        )
        if -9 in codes:
            deaths[kill.what] += 1
        else:
            assert codes == [0] * ranks, (tmp_path / "killed.log").read_text()[-2000:]
        if killed.finished:
            break
    else:
        assert trainers.train(argv, tmp_path / "killed.log", ranks=ranks) == [0] * ranks
    print(dict(deaths))
    assert sum(deaths.values()) >= KILLS - 1
    assert_bit_equal(killed, reference)


def test_three_ranks_sum_in_the_same_order_after_a_kill(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path
) -> None:
    runs = [Run(tmp_path / name) for name in ("reference", "killed")]
    kill = [{"fault": "kill", "at": "backward", "rank": 1, "count": 25}]
    for run, faults in zip(runs, ([], kill), strict=True):
        argv = command(packed_sets["raw"], run.path, "raw", epochs=20)
        if faults:
            assert -9 in trainers.train(argv, tmp_path / "log", ranks=3, faults=faults)
        assert trainers.train(argv, tmp_path / "log", ranks=3) == [0, 0, 0]
    assert_bit_equal(runs[1], runs[0])


def test_a_rank_that_loses_its_peer_fails_with_words_and_the_run_goes_on(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path
) -> None:
    run = Run(tmp_path / "run")
    argv = command(packed_sets["raw"], run.path, "raw", epochs=20)
    kill = [{"fault": "kill", "at": "optimiser", "rank": 1, "count": 20}]
    codes = trainers.train(argv, tmp_path / "log", ranks=2, faults=kill, linger=True)
    assert codes[1] == -9
    assert codes[0] == 1
    end = run.end()
    assert end is not None and end["outcome"] == "failed"
    assert trainers.train(argv, tmp_path / "log", ranks=2) == [0, 0]
    assert run.finished
