"""Every row of faults.toml: what happens, and what must come of it.

A share of the rows runs here, another one with the next commit; `--whole` runs them all.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chaos.recipes import PHASES, RECIPES, command, skip_without_compiler
from chaos.trainers import Trainers, assert_bit_equal
from shares import share
from stoker.run.directory import Run
from stoker.survive.remedies import Remedies
from waiting import until

EPOCHS = 16
PARTS = 4
pytestmark = pytest.mark.exact


@dataclass(frozen=True)
class Row:
    name: str
    codes: list[int]
    faults: list[dict[str, Any]]
    ranks: int = 1
    recipe: str = "raw, sgd, phases"
    keys: list[str] = field(default_factory=list)
    compiler: bool = True
    variables: dict[str, str] = field(default_factory=dict)
    linger: bool = False
    says: list[str] = field(default_factory=list)
    held: str = ""
    takes: list[str] = field(default_factory=list)
    within: int | None = None
    then: str = ""


TABLE = tomllib.loads((Path(__file__).parent / "faults.toml").read_text())
ROWS = [Row(**row) for row in TABLE["row"]]


def words(sets: dict[str, Path], run: Path, row: Row) -> list[str]:
    """The command of a row: its keys are lines of a recipe file."""
    argv = command(sets, run, row.recipe, epochs=EPOCHS)
    recipe = run.parent / "keys.toml"
    phases = PHASES if RECIPES[row.recipe].phases else ""
    recipe.write_text("\n".join([*row.keys, phases]))
    if "--recipe" in argv:
        del argv[argv.index("--recipe") :]
    return [*argv, "--recipe", str(recipe)]


@pytest.fixture(scope="module")
def undisturbed(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int, bool], Run]:
    """References, made when a row asks for one."""
    made: dict[tuple[str, int, bool], Run] = {}

    class References(dict[tuple[str, int, bool], Run]):
        def __missing__(self, wanted: tuple[str, int, bool]) -> Run:
            recipe, ranks, compiled = wanted
            keys = ["compile = true"] if compiled else []
            row = Row("reference", [], [], ranks=ranks, recipe=recipe, keys=keys)
            run = Run(tmp_path_factory.mktemp("reference") / "run")
            argv = words(packed_sets, run.path, row)
            assert trainers.train(argv, run.path.parent / "log", ranks=ranks) == [0] * ranks
            self[wanted] = run
            return run

    return References(made)


@pytest.fixture(scope="module")
def without_compiler() -> Iterator[Callable[[], Trainers]]:
    """A server whose torch.compile returns the model as it is; started when a row asks for it."""
    servers: list[Trainers] = []

    def server() -> Trainers:
        if not servers:
            servers.append(Trainers({"TORCH_COMPILE_DISABLE": "1"}))
        return servers[0]

    yield server
    for one in servers:
        one.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "row" in metafunc.fixturenames:
        rows = share("faults", ROWS, PARTS, whole=metafunc.config.getoption("--whole"))
        metafunc.parametrize("row", rows, ids=lambda row: row.name)


def test_row(
    trainers: Trainers,
    without_compiler: Callable[[], Trainers],
    packed_sets: dict[str, Path],
    tmp_path: Path,
    undisturbed: dict[tuple[str, int, bool], Run],
    row: Row,
) -> None:
    if not row.compiler:
        trainers = without_compiler()
    elif "compile = true" in row.keys:
        skip_without_compiler()
    run, log = Run(tmp_path / "run"), tmp_path / "log"
    argv = words(packed_sets, run.path, row)
    enough = tmp_path / "enough"
    faults = [{**fault, "till": str(enough)} if row.held else fault for fault in row.faults]

    def let_go(pids: list[int]) -> None:
        if row.held:
            until(lambda: log.exists() and row.held in log.read_text(), within_s=120)
            enough.touch()

    codes = trainers.train(
        argv,
        log,
        ranks=row.ranks,
        faults=faults,
        linger=row.linger,
        variables=row.variables,
        meanwhile=let_go,
    )
    said = log.read_text()
    assert codes == row.codes, said[-3000:]
    for expected in row.says:
        assert expected in said
    assert [remedy.kind for remedy in Remedies(run.path).taken] == row.takes
    if row.within is not None:
        end = run.end()
        assert end is not None
        assert end["step"] <= row.within + (row.faults[0].get("step") or 0)
        assert list((run.path / "trouble").glob("*/rank0.json"))
    if not row.then:
        assert run.finished or row.codes[0] != 0
        return
    assert trainers.train(argv, log, ranks=row.ranks) == [0] * row.ranks, log.read_text()[-3000:]
    assert run.finished
    if row.then == "same":
        wanted = (row.recipe, row.ranks, "compile = true" in row.keys)
        assert_bit_equal(run, undisturbed[wanted])
