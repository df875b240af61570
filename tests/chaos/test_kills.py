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
