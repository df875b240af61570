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
from stoker.errors import INTERRUPTED
from stoker.run import Run
from stoker.survive.saving import Checkpoints
from stoker.survive.spot import ENDPOINT

LEFT_S = 20.0
TIMES, TIMES_OF_THE_WHOLE = 3, 20


def test_it_is_gone_before_the_machine(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path, tables: Tables, whole: bool
) -> None:
    times = TIMES_OF_THE_WHOLE if whole else TIMES
    draw = random.Random(11)
    spare = []
    for number in range(times):
        service = Metadata()
        run, log = Run(tmp_path / f"run{number}"), tmp_path / f"log{number}"
        recipe = list(RECIPES)[number % len(RECIPES)]
        provider = "aws" if number % 4 < 2 else ("gcp", "azure")[number % 2]
        argv = command(packed_sets, run.path, recipe, epochs=4000, more=f"--spot-notice {provider}")

        def announce(pids: list[int], service: Metadata = service) -> None:
            time.sleep(draw.uniform(1.0, 4.0))
            service.notice(LEFT_S)

        ranks = 1 + number % 2
        codes = trainers.train(
            argv, log, ranks=ranks, variables={ENDPOINT: service.url}, meanwhile=announce
        )
        service.close()
        assert codes == [INTERRUPTED] * ranks, log.read_text()[-2000:]
        assert service.end_at is not None and trainers.ended_at < service.end_at
        spare.append(service.end_at - trainers.ended_at)
        end, (newest, torn) = run.end(), Checkpoints(run.path).newest()
        assert end is not None and newest is not None
        assert (newest.facts["step"], torn) == (end["step"], [])
        assert end["reason"].startswith(f"spot notice: {provider}")
    tables.say(
        f"spot notices with {LEFT_S:.0f} s left: {len(spare)} of {times} saved and gone in time, "
        f"with {min(spare):.1f} to {max(spare):.1f} s to spare"
    )


@pytest.mark.parametrize("seconds", [3.0])
def test_a_time_limit_is_kept(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path, seconds: float
) -> None:
    run, log = Run(tmp_path / "run"), tmp_path / "log"
    began = time.time()
    argv = command(
        packed_sets, run.path, "raw, sgd, phases", epochs=4000, more=f"--time-limit {seconds}"
    )
    assert trainers.train(argv, log) == [INTERRUPTED], log.read_text()[-2000:]
    assert trainers.ended_at - began < seconds + 5
    end = run.end()
    assert end is not None and end["reason"] == "its time limit"
