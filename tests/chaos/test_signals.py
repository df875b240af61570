"""Every stop request, in every phase, sent to every target: saved at that step, gone in time, code
75, and the same command resumes to the same result.

A share of the cells runs here, another one with the next commit. `--whole` runs them all.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from chaos.conftest import Tables
from chaos.metadata import Metadata
from chaos.recipes import command, skip_without_compiler
from chaos.trainers import Trainers, assert_bit_equal
from measured import held, measured
from shares import share
from stoker.errors import INTERRUPTED
from stoker.run.directory import Run
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.spot import ENDPOINT
from waiting import until

GRACE_S = 10.0
SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP")
PHASES = {
    "starting": "starting",
    "data wait": "decode",
    "forward": "forward",
    "backward": "backward",
    "optimiser": "optimiser",
    "evaluation": "evaluation",
    "save": "state.pt:piece",
    "compile": "compile",
}
"""What a table calls a phase, and the place where it is held up."""
TARGETS = ("one rank", "the other rank", "all ranks", "the process group")
THREADS = (1, 2, 8)
PARTS = 17
"""Shares of the cells."""
PACKING = [(request, workers) for request in (*SIGNALS, "notice") for workers in (1, 2)]
PACKING_PARTS = 4
pytestmark = [pytest.mark.exact, pytest.mark.alone]
TRIES = 5
"""For what takes too long, as it may where neighbours have the cores. All else holds in each."""


@dataclass(frozen=True)
class Cell:
    request: str
    phase: str
    target: str
    threads: int

    def __str__(self) -> str:
        return f"{self.request} in {self.phase} to {self.target}, {self.threads} threads"


def cells() -> list[Cell]:
    signalled = product(SIGNALS, PHASES, TARGETS)
    noticed = product(["notice"], PHASES, ["the machine"])
    return [
        Cell(*three, THREADS[number % len(THREADS)])
        for number, three in enumerate([*signalled, *noticed])
    ]


def chosen(whole: bool) -> list[Cell]:
    """All of them, or a share that rotates with the commit."""
    return share("signals", cells(), PARTS, whole=whole)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" in metafunc.fixturenames:
        found = chosen(metafunc.config.getoption("--whole"))
        metafunc.parametrize("cell", found, ids=str)
    if "workers" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole")
        cases = share("signals to a pack", PACKING, PACKING_PARTS, whole=whole)
        metafunc.parametrize(("stop_request", "workers"), cases)


@pytest.fixture(scope="module")
def metadata() -> Iterator[Metadata]:
    service = Metadata()
    yield service
    service.close()


def words(sets: dict[str, Path], run: Path, cell: Cell) -> list[str]:
    more = f"--threads {cell.threads} --grace {GRACE_S}"
    if cell.request == "notice":
        more += " --spot-notice gcp"
    if cell.phase == "compile":
        more += " --compile"
    return command(sets, run, "raw, sgd, phases", epochs=16, more=more)


def send(cell: Cell, pids: list[int], metadata: Metadata) -> None:
    if cell.request == "notice":
        metadata.notice(30)
        return
    number = signal.Signals[cell.request]
    if cell.target == "the process group":
        os.killpg(pids[0], number)
    elif cell.target == "all ranks":
        for pid in pids:
            os.kill(pid, number)
    else:
        os.kill(pids[0] if cell.target == "one rank" else pids[1], number)


@pytest.fixture(scope="module")
def reference(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Run:
    run = Run(tmp_path_factory.mktemp("reference") / "run")
    cell = Cell("SIGTERM", "forward", "all ranks", 2)
    log = run.path.parent / "log"
    assert trainers.train(words(packed_sets, run.path, cell), log, ranks=2) == [0, 0]
    return run


class Delivery:
    """Sends a stop request once the run is held up at its place, and lets the run go when the
    request has come: so a slow sender still finds the run there."""

    def __init__(self, cell: Cell, metadata: Metadata, place: Path) -> None:
        self.cell, self.metadata = cell, metadata
        self.mark, self.till = place / "mark", place / "till"
        self.sent_at = self.held_s = 0.0
        metadata.withdraw()

    def stall(self, at: str, count: int = 1) -> dict[str, Any]:
        """The fault that holds rank 0 up."""
        files = {"mark": str(self.mark), "till": str(self.till)}
        return {"fault": "stall", "at": at, "rank": 0, "count": count, "seconds": 300, **files}

    def __call__(self, pids: list[int]) -> None:
        until(self.mark.exists, within_s=300)
        self.sent_at = came_at = time.time()
        send(self.cell, pids, self.metadata)
        if self.cell.request == "notice":
            came_at = until(lambda: self.metadata.told_at)
        self.till.touch()
        self.held_s = time.time() - came_at

    def took(self, ended_at: float) -> float:
        """Seconds from the request to the end, without those for which we held the run up."""
        return ended_at - self.sent_at - self.held_s


@measured(TRIES)
def test_a_stop_request_is_heard(
    trainers: Trainers,
    packed_sets: dict[str, Path],
    tmp_path: Path,
    reference: Run,
    metadata: Metadata,
    tables: Tables,
    cell: Cell,
) -> None:
    if cell.phase == "compile":
        skip_without_compiler()
    variables = {ENDPOINT: metadata.url}
    often = cell.phase not in ("starting", "compile", "evaluation", "save")
    run, log = Run(tmp_path / "run"), tmp_path / "log"
    argv = words(packed_sets, run.path, cell)
    delivery = Delivery(cell, metadata, tmp_path)
    stall = delivery.stall(PHASES[cell.phase], count=10 if often else 1)
    codes = trainers.train(
        argv, log, ranks=2, faults=[stall], variables=variables, meanwhile=delivery, linger=True
    )
    took = delivery.took(trainers.ended_at)
    assert codes == [INTERRUPTED] * 2, log.read_text()[-3000:]
    end = run.end()
    assert end is not None and end["outcome"] == "interrupted"
    newest, torn = Checkpoints(run.path).newest()
    assert torn == []
    # What is compiled first is what begins: there was nothing to save yet.
    assert (newest.facts["step"] if newest else 0) == end["step"] == len(run.steps())
    held(took < GRACE_S, took)
    tables.say(f"{cell}: saved at step {end['step']}, gone after {took:.1f} s")
    if cell.phase != "compile":
        metadata.withdraw()
        codes = trainers.train(argv, log, ranks=2, variables=variables)
        assert codes == [0, 0], log.read_text()[-3000:]
        assert_bit_equal(run, reference)


@measured(TRIES)
def test_packing_stops_and_goes_on(
    trainers: Trainers,
    photos: Path,
    packed_sets: dict[str, Path],
    tmp_path: Path,
    metadata: Metadata,
    stop_request: str,
    workers: int,
) -> None:
    variables = {ENDPOINT: metadata.url}
    out, log = tmp_path / "out", tmp_path / "log"
    argv = ["pack", str(photos), str(out), "--codec", "raw", "--shard-images", "50"]
    argv += ["--workers", str(workers), "--spot-notice", "gcp"]
    stop = Delivery(Cell(stop_request, "pack", "one rank", 0), metadata, tmp_path)
    # Nobody lets go: a request is heard here at once, or never.
    stall = {**stop.stall("pack"), "till": ""}
    codes = trainers.train(argv, log, faults=[stall], variables=variables, meanwhile=stop)
    assert codes == [INTERRUPTED], log.read_text()
    took = trainers.ended_at - stop.sent_at
    held(took < GRACE_S, took)
    metadata.withdraw()
    assert trainers.train(argv, log, variables=variables) == [0], log.read_text()
    ours, theirs = ((path / "dataset.json").read_bytes() for path in (out, packed_sets["raw"]))
    assert ours == theirs
