"""SIGKILL at random moments, the same command each time: the result is the same to the bit.

A share of the recipes and of the moments runs here, another one with the next commit (shares.py).
`--whole` makes 200 kills. The table at the end says what was killed where.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from chaos.conftest import Tables
from chaos.recipes import MORE, RECIPES, command
from chaos.trainers import Trainers, assert_bit_equal, random_kills
from shares import rotation, share
from stoker.run.directory import Run

KILLS, KILLS_OF_THE_WHOLE = 6, 25
"""For each of the recipes, on 1 and on 2 ranks."""
CELLS = [(recipe, ranks) for recipe in RECIPES for ranks in (1, 2)]
PARTS = 3
MORE_CELLS = [(recipe, 1 + number % 2) for number, recipe in enumerate(MORE)]
MORE_PARTS = 6
pytestmark = pytest.mark.exact


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "recipe" in metafunc.fixturenames:
        whole = metafunc.config.getoption("--whole")
        cells = share("kills", CELLS, PARTS, whole=whole)
        cells += share("more kills", MORE_CELLS, MORE_PARTS, whole=whole)
        metafunc.parametrize(("recipe", "ranks"), cells)


def test_kills_leave_no_trace(
    trainers: Trainers,
    packed_sets: dict[str, Path],
    tmp_path: Path,
    tables: Tables,
    whole: bool,
    ranks: int,
    recipe: str,
) -> None:
    kills = KILLS_OF_THE_WHOLE if whole else KILLS
    epochs = 60 if whole else 24
    reference, killed = Run(tmp_path / "reference"), Run(tmp_path / "killed")
    if "sgd, " not in recipe and "adamw" not in recipe:
        pytest.importorskip("timm")
    argv = command(packed_sets, reference.path, recipe, epochs=epochs)
    assert trainers.train(argv, tmp_path / "reference.log", ranks=ranks) == [0] * ranks

    argv = command(packed_sets, killed.path, recipe, epochs=epochs)
    deaths: Counter[str] = Counter()
    for number, kill in enumerate(
        random_kills(3 * kills, seed=97 * ranks + len(recipe) + (0 if whole else rotation()))
    ):
        codes = trainers.train(
            argv, tmp_path / "killed.log", ranks=ranks, **kill.arguments(rank=number % ranks)
        )
        if -9 in codes:
            deaths[kill.where] += 1
        else:
            assert codes == [0] * ranks, (tmp_path / "killed.log").read_text()[-2000:]
        if killed.finished or sum(deaths.values()) == kills:
            break
    if not killed.finished:
        assert trainers.train(argv, tmp_path / "killed.log", ranks=ranks) == [0] * ranks
    assert sum(deaths.values()) >= kills - 1
    assert_bit_equal(killed, reference)
    tables.count(f"SIGKILL: {ranks} rank{'s' * (ranks > 1)}, {recipe}", deaths)


ENDS = ("evaluation", "save:begun", "COMMITTED:named", "last:named")
"""Where a run is killed that is about to end early: its third evaluation, or the save after it."""


def end_early(argv: list[str], run: Run, trainers: Trainers, log: Path, ranks: int) -> None:
    """Train a run to an early end, killed on the way there and once more just before it."""
    for at in share("early ends", ENDS, 2):
        count = 3 if at == "evaluation" else 4
        trainers.train(argv, log, ranks=ranks, faults=[{"fault": "kill", "at": at, "count": count}])
    if not run.finished:
        assert trainers.train(argv, log, ranks=ranks) == [0] * ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_ended_early_goes_on_to_the_same_bits(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path, ranks: int
) -> None:
    name, log = "raw, weights, frozen body that thaws, ema", tmp_path / "log"
    runs = [Run(tmp_path / name) for name in ("reference", "early")]
    reference, early = (command(packed_sets, run.path, name, epochs=20) for run in runs)
    assert trainers.train(reference, log, ranks=ranks) == [0] * ranks
    # A rule that the third evaluation meets: the results of the reference are known.
    shares = [event["top1"] / event["images"] for event in runs[0].merged("evaluation")]
    target = max(shares[:3])
    first = shares.index(target)
    end_early([*early, "--target", repr(target)], runs[1], trainers, log, ranks)
    end = runs[1].end()
    assert end and end["outcome"] == "finished" and "--target" in end["reason"]
    assert end["position"] == runs[0].merged("evaluation")[first]["position"]
    assert trainers.train(early, log, ranks=ranks) == [0] * ranks
    assert_bit_equal(runs[1], runs[0])


def test_three_ranks_sum_in_the_same_order_after_a_kill(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path
) -> None:
    runs = [Run(tmp_path / name) for name in ("reference", "killed")]
    kill = [{"fault": "kill", "at": "backward", "rank": 1, "count": 25}]
    for run, faults in zip(runs, ([], kill), strict=True):
        argv = command(packed_sets, run.path, "raw, adamw, ema, one-cycle", epochs=20)
        if faults:
            assert -9 in trainers.train(argv, tmp_path / "log", ranks=3, faults=faults)
        assert trainers.train(argv, tmp_path / "log", ranks=3) == [0, 0, 0]
    assert_bit_equal(runs[1], runs[0])
