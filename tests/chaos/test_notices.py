"""A spot notice with 20 s left: everything saved and every rank gone before the machine is."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from chaos.conftest import Tables
from chaos.metadata import Metadata
from chaos.recipes import RECIPES, command
from chaos.trainers import Trainers
from measured import held, measured
from shares import share
from stoker.errors import INTERRUPTED
from stoker.run.directory import Run
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.spot import ENDPOINT
from waiting import until

pytestmark = pytest.mark.alone

LEFT_S = 20.0
TIMES, PARTS = 20, 10
TRIES = 5
"""For what takes too long, as it may where neighbours have the cores. All else holds in each."""


def spare_s(
    trainers: Trainers, packed_sets: dict[str, Path], place: Path, number: int, delay_s: float
) -> float:
    """A run that is given notice: how long before its machine it is gone, with everything saved."""
    place.mkdir()
    run, log, service = Run(place / "run"), place / "log", Metadata()
    recipe, ranks = list(RECIPES)[number % len(RECIPES)], 1 + number % 2
    provider = "aws" if number % 4 < 2 else ("gcp", "azure")[number % 2]
    argv = command(packed_sets, run.path, recipe, epochs=4000, more=f"--spot-notice {provider}")

    def announce(pids: list[int]) -> None:
        # Once somebody listens: a slow start takes nothing off the time that is left.
        until(lambda: service.asked, within_s=300)
        time.sleep(delay_s)
        service.notice(LEFT_S)

    codes = trainers.train(
        argv, log, ranks=ranks, variables={ENDPOINT: service.url}, meanwhile=announce
    )
    service.close()
    assert codes == [INTERRUPTED] * ranks, log.read_text()[-2000:]
    end, (newest, torn) = run.end(), Checkpoints(run.path).newest()
    assert end is not None and newest is not None
    assert (newest.facts["step"], torn) == (end["step"], [])
    assert end["reason"].startswith(f"spot notice: {provider}")
    assert service.end_at is not None
    return service.end_at - trainers.ended_at


def test_it_is_gone_before_the_machine(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path, tables: Tables, whole: bool
) -> None:
    draw = random.Random(11)
    # Any moment between two questions of any provider.
    delays = [(number, draw.uniform(0.0, 5.0)) for number in range(TIMES)]
    spare: list[float] = []
    for number, delay_s in share("notices", delays, PARTS, whole=whole):
        for again in range(1 if whole else TRIES):
            place = tmp_path / f"{number}-{again}"
            left_s = spare_s(trainers, packed_sets, place, number, delay_s)
            if left_s > 0:
                break
        assert left_s > 0
        spare.append(left_s)
    tables.say(
        f"spot notices with {LEFT_S:.0f} s left: all {len(spare)} saved and gone in time, "
        f"with {min(spare):.1f} to {max(spare):.1f} s to spare"
    )


@pytest.mark.parametrize("seconds", [3.0])
@measured(TRIES)
def test_a_time_limit_is_kept(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path, seconds: float
) -> None:
    run, log = Run(tmp_path / "run"), tmp_path / "log"
    argv = command(
        packed_sets, run.path, "raw, sgd, phases", epochs=4000, more=f"--time-limit {seconds}"
    )
    began = time.time()
    assert trainers.train(argv, log) == [INTERRUPTED], log.read_text()[-2000:]
    took = trainers.ended_at - began
    end = run.end()
    assert end is not None and end["reason"] == "time limit"
    held(took < seconds + 5, took)
