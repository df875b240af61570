"""Every wish to stop, in every phase, sent to every target: saved at that step, gone in time, code
75, and the same command goes on to the same result.

A seeded share of the cells runs here; `pytest tests/chaos/test_signals.py --whole` runs them all.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from chaos.conftest import Tables
from chaos.metadata import Metadata
from chaos.recipes import command, skip_without_compiler
from chaos.trainers import Trainers, assert_bit_equal
from stoker.errors import INTERRUPTED
from stoker.run import Run
from stoker.survive.saving import Checkpoints
from stoker.survive.spot import ENDPOINT

GRACE_S = 10.0
SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2")
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
SHARE = 12


@dataclass(frozen=True)
class Cell:
    wish: str
    phase: str
    target: str
    threads: int

    def __str__(self) -> str:
        return f"{self.wish} in {self.phase} to {self.target}, {self.threads} threads"


def cells() -> list[Cell]:
    signalled = product(SIGNALS, PHASES, TARGETS)
    noticed = product(["notice"], PHASES, ["the machine"])
    return [
        Cell(*three, THREADS[number % len(THREADS)])
        for number, three in enumerate([*signalled, *noticed])
    ]


def chosen(whole: bool) -> list[Cell]:
    """All of them, or a share that has each phase and each wish."""
    every = cells()
    if whole:
        return every
    draw = random.Random(5)
    share = [draw.choice([c for c in every if c.phase == phase]) for phase in PHASES]
    share += [draw.choice([c for c in every if c.wish == wish]) for wish in (*SIGNALS, "notice")]
    return list(dict.fromkeys(share))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cell" in metafunc.fixturenames:
        found = chosen(metafunc.config.getoption("--whole"))
        metafunc.parametrize("cell", found, ids=str)


@pytest.fixture(scope="module")
def metadata() -> Iterator[Metadata]:
    service = Metadata()
    yield service
    service.close()


def words(sets: dict[str, Path], run: Path, cell: Cell) -> list[str]:
    more = f"--threads {cell.threads} --grace {GRACE_S}"
    if cell.wish == "notice":
        more += " --spot-notice gcp"
    if cell.phase == "compile":
        more += " --compile"
    return command(sets, run, "raw, sgd, phases", epochs=16, more=more)


def send(cell: Cell, pids: list[int], metadata: Metadata) -> None:
    if cell.wish == "notice":
        metadata.notice(30)
        return
    number = signal.Signals[cell.wish]
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


def test_a_wish_is_heard(
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
    run, log, mark = Run(tmp_path / "run"), tmp_path / "log", tmp_path / "mark"
    argv = words(packed_sets, run.path, cell)
    metadata.end_at = None
    sent_at = 0.0

    def wish(pids: list[int]) -> None:
        nonlocal sent_at
        give_up = time.monotonic() + 60
        while not mark.exists():
            assert time.monotonic() < give_up, log.read_text()[-2000:]
            time.sleep(0.02)
        sent_at = time.time()
        send(cell, pids, metadata)

    early = cell.phase in ("starting", "compile")
    stall = {
        "fault": "stall",
        "at": PHASES[cell.phase],
        "rank": 0,
        "count": 1 if early or cell.phase in ("evaluation", "save") else 10,
        "seconds": 2.5 if cell.wish == "notice" else 0.7,
        "mark": str(mark),
    }
    variables = {ENDPOINT: metadata.url}
    codes = trainers.train(
        argv, log, ranks=2, faults=[stall], variables=variables, meanwhile=wish, linger=True
    )
    took = trainers.ended_at - sent_at
    assert codes == [INTERRUPTED] * 2, log.read_text()[-3000:]
    assert took < GRACE_S
    end = run.end()
    assert end is not None and end["outcome"] == "interrupted"
    newest, torn = Checkpoints(run.path).newest()
    assert torn == []
    # What is compiled first is what begins: there was nothing to save yet.
    assert (newest.facts["step"] if newest else 0) == end["step"] == len(run.steps())
    tables.say(f"{cell}: saved at step {end['step']}, gone after {took:.1f} s")
    if cell.phase != "compile":
        assert trainers.train(argv, log, ranks=2) == [0, 0], log.read_text()[-3000:]
        assert_bit_equal(run, reference)


@pytest.mark.parametrize("wish", [*SIGNALS, "notice"])
@pytest.mark.parametrize("workers", [1, 2])
def test_packing_stops_and_goes_on(
    trainers: Trainers,
    photos: Path,
    packed_sets: dict[str, Path],
    tmp_path: Path,
    metadata: Metadata,
    wish: str,
    workers: int,
) -> None:
    out, log, mark = tmp_path / "out", tmp_path / "log", tmp_path / "mark"
    argv = ["pack", str(photos), str(out), "--codec", "raw", "--shard-images", "50"]
    argv += ["--workers", str(workers), "--spot-notice", "gcp"]
    metadata.end_at = None

    def stop(pids: list[int]) -> None:
        give_up = time.monotonic() + 60
        while not mark.exists():
            assert time.monotonic() < give_up
            time.sleep(0.02)
        send(Cell(wish, "pack", "one rank", 0), pids, metadata)

    stall = {"fault": "stall", "at": "pack", "seconds": 5, "mark": str(mark)}
    variables = {ENDPOINT: metadata.url}
    began = time.time()
    codes = trainers.train(argv, log, faults=[stall], variables=variables, meanwhile=stop)
    assert codes == [INTERRUPTED], log.read_text()
    assert trainers.ended_at - began < GRACE_S
    metadata.end_at = None
    assert trainers.train(argv, log, variables=variables) == [0], log.read_text()
    ours, theirs = ((path / "dataset.json").read_bytes() for path in (out, packed_sets["raw"]))
    assert ours == theirs
