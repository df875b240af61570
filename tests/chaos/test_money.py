"""What real runs cost, killed and resumed: never more than their budget, and what a clock beside
them says.

A provider is faked by the time between the start of each process and its end. A share of the seeded
budgets runs here, another one with the next commit (shares.py); `--whole` runs all 50.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos.conftest import Tables
from chaos.trainers import Trainers
from shares import share
from stoker.errors import BAD_REQUEST, INTERRUPTED
from stoker.price.ledger.budget import is_budget_stop
from stoker.price.ledger.cost import cost_of
from stoker.run.directory import Run
from stoker.survive.checkpoints import Checkpoints
from waiting import until

SEEDS, PARTS = range(50), 13
MACHINES = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
"""Each rank is the only one of its machine."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole")
        metafunc.parametrize("seed", share("budgets", SEEDS, PARTS, whole=whole))


def command(data: Path, run: Run, epochs: int = 100_000) -> list[str]:
    flags = "--model resnet9_w2 --batch-size 40 --image-size 16 --crop pad --threads 1"
    place = ["train", str(data), "--run", str(run.path), "--epochs", str(epochs)]
    return [*place, *flags.split()]


@pytest.fixture(scope="module")
def short_run_s(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> float:
    """Seconds of a run of one epoch here: a budget has to leave room for a start."""
    folder = tmp_path_factory.mktemp("short")
    provider = Provider(trainers, folder / "log")
    argv = command(packed_sets["raw"], Run(folder / "run"), epochs=1)
    assert provider.train(argv, 1.0, 1, ranks=2) == [0, 0]
    return provider.machine_s


def steps_of(run: Run) -> int:
    """Steps that are on record, of any attempt."""
    return sum(event["kind"] == "step" for event in run.events())


def once_trained(run: Run, number: signal.Signals, steps: int) -> Callable[[list[int]], None]:
    """Send a signal to rank 0 once so many more steps are on record."""
    target = steps_of(run) + steps

    def act(processes: list[int]) -> None:
        until(lambda: steps_of(run) >= target, within_s=300, every_s=0.05)
        os.kill(processes[0], number)

    return act


class Provider:
    """Bills each machine from before its process starts until after it has ended."""

    def __init__(self, trainers: Trainers, log: Path) -> None:
        self._trainers, self._log = trainers, log
        self.machine_s = self.dollars = 0.0
        trainers.train(["--help"], log)  # the server has imported torch once it answers

    def train(self, argv: list[str], per_hour: float, machines: int, **how: Any) -> list[int]:
        began = time.time()
        priced = [*argv, "--price-per-hour", f"{per_hour:g}"]
        codes = self._trainers.train(priced, self._log, **how)
        seconds = self._trainers.ended_at - began
        self.machine_s += seconds
        self.dollars += machines * seconds * per_hour / 3600
        return codes


def test_the_ledger_equals_the_invoice(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path, tables: Tables
) -> None:
    """Two machines, three kills and three prices: the same to a cent."""
    run = Run(tmp_path / "run")
    argv, provider = command(packed_sets["raw"], run), Provider(trainers, tmp_path / "log")
    how = {"ranks": 2, "variables": MACHINES}
    for per_hour in (2.0, 3.5, 1.25):
        kill = once_trained(run, signal.SIGKILL, 30)
        codes = provider.train(argv, per_hour, 2, meanwhile=kill, **how)
        assert codes[0] == -signal.SIGKILL, (tmp_path / "log").read_text()[-2000:]
    stop = once_trained(run, signal.SIGTERM, 30)
    assert provider.train(argv, 1.25, 2, meanwhile=stop, **how) == [INTERRUPTED] * 2
    cost = cost_of(run)
    tables.say(f"money: the ledger says ${cost.total:.4f}, the provider ${provider.dollars:.4f}")
    assert cost.total == pytest.approx(provider.dollars, abs=0.01)
    assert cost.total <= provider.dollars
    assert len(cost.machines) == 8 and {p.dollars for p in cost.prices} == {2.0, 3.5, 1.25}
    assert sum(cost.dollars.values()) == pytest.approx(cost.total, abs=1e-9)
    assert cost.dollars["redone"] > 0 and cost.dollars["useful"] > 0


def test_a_budget_is_never_passed(
    trainers: Trainers,
    packed_sets: dict[str, Path],
    tmp_path: Path,
    tables: Tables,
    short_run_s: float,
    seed: int,
) -> None:
    chance, run = random.Random(seed), Run(tmp_path / "run")
    ranks = chance.choice([1, 1, 2])
    per_hour, seconds = chance.uniform(100, 9000), chance.uniform(22, 30) + short_run_s
    machines = ranks if chance.random() < 0.5 else 1
    how: dict[str, Any] = {"ranks": ranks, "variables": MACHINES if machines > 1 else {}}
    budget = seconds * per_hour * machines / 3600
    limit = ["--max-dollars", f"{budget:.6f}"]
    if in_hours := chance.random() < 0.2:
        limit = ["--max-hours", f"{seconds / 3600:.8f}"]
    log, provider = tmp_path / "log", Provider(trainers, tmp_path / "log")
    argv = command(packed_sets["raw"], run)
    if killed := chance.random() < 0.3:
        provider.train(
            [*argv, *limit], per_hour, machines, kill_after_s=chance.uniform(3, 9), **how
        )
    codes = provider.train([*argv, *limit], per_hour, machines, **how)
    spent = provider.machine_s if in_hours else provider.dollars
    assert spent <= (seconds if in_hours else budget), log.read_text()[-3000:]
    tables.say(f"money: seed {seed}: {spent / (seconds if in_hours else budget):.1%} of the budget")
    assert codes == [BAD_REQUEST] * ranks, log.read_text()[-3000:]
    end = run.end() if run.exists else None
    if end is None:
        assert killed  # what the killed attempt left does not suffice for a start
        return
    assert killed or steps_of(run) > 0
    assert end["outcome"] == "interrupted" and end["saved"] and is_budget_stop(end["reason"])
    newest, _ = Checkpoints(run.path).newest()
    assert newest is not None and newest.facts["position"] == end["position"]
    attempts = run.attempts()
    assert provider.train([*argv, *limit], per_hour, machines, **how) == [BAD_REQUEST] * ranks
    assert run.attempts() == attempts, "a refusal begins no attempt"
    stop = once_trained(run, signal.SIGTERM, 5)
    assert trainers.train(argv, log, meanwhile=stop, **how) == [INTERRUPTED] * ranks
    assert run.starts()[-1]["position"] == end["position"]
