"""Killed at every stage of a save, or damaged afterwards: the newest whole checkpoint is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from chaos.conftest import Tables
from chaos.recipes import command
from chaos.trainers import SAVE_STAGES, Trainers, assert_bit_equal
from shares import share
from stoker.run.directory import Run
from stoker.run.evaluation import NAME
from stoker.survive.checkpoints import Checkpoints
from stoker.survive.manifest import manifest_of

RECIPE = "raw, adamw, ema, one-cycle"
STAGES = (
    *SAVE_STAGES,
    *("ema.safetensors:piece", "ema.safetensors:synced"),
    *("evaluation.json:written", "evaluation.json:named"),
)
PARTS = 3
pytestmark = pytest.mark.exact


@pytest.fixture(scope="module")
def reference(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Run:
    run = Run(tmp_path_factory.mktemp("reference") / "run")
    argv = command(packed_sets, run.path, RECIPE, epochs=16)
    assert trainers.train(argv, run.path.parent / "log") == [0]
    return run


def resume(trainers: Trainers, argv: list[str], run: Run, log: Path) -> tuple[int, list[str]]:
    """Go on to the end; the step it went on from, and what it called torn."""
    attempt = max(run.attempts()) + 1
    assert trainers.train(argv, log) == [0], log.read_text()[-2000:]
    start = run.start_of(attempt)
    assert start is not None
    return start["step"], start["torn"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    whole = metafunc.config.getoption("--whole")
    if "stage" in metafunc.fixturenames:
        metafunc.parametrize("stage", share("save stages", STAGES, PARTS, whole=whole))
    if "damage" in metafunc.fixturenames:
        metafunc.parametrize("damage", share("damage", list(DAMAGE), PARTS, whole=whole))


def test_a_kill_at_any_stage_is_resumed_from_the_newest_whole_one(
    trainers: Trainers,
    packed_sets: dict[str, Path],
    tmp_path: Path,
    reference: Run,
    tables: Tables,
    stage: str,
) -> None:
    run, log = Run(tmp_path / "run"), tmp_path / "log"
    argv = command(packed_sets, run.path, RECIPE, epochs=16)
    rare = stage.startswith(("best", "prune"))
    kill = {"fault": "kill", "at": stage, "count": 1 if rare else 3}
    assert trainers.train(argv, log, faults=[kill]) == [-9]
    newest, torn = Checkpoints(run.path).newest()
    assert newest is not None
    assert resume(trainers, argv, run, log) == (newest.facts["step"], torn)
    assert_bit_equal(run, reference)
    assert (run.path / NAME).read_bytes() == (reference.path / NAME).read_bytes()
    tables.say(f"killed at {stage}: went on from step {newest.facts['step']}, torn: {torn}")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "a bit flipped in the weights": lambda folder: flip(folder / "weights.safetensors"),
    "a bit flipped in the state": lambda folder: flip(folder / "state.pt"),
    "a bit flipped in the manifest": lambda folder: flip(folder / "manifest.json"),
    "the average cut short": lambda folder: cut_short(folder / "ema.safetensors"),
    "no marker": lambda folder: (folder / "COMMITTED").unlink(),
    "a file gone": lambda folder: (folder / "state.pt").unlink(),
}


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def test_a_damaged_checkpoint_is_named_set_aside_and_gone_once_overtaken(
    trainers: Trainers, packed_sets: dict[str, Path], tmp_path: Path, reference: Run, damage: str
) -> None:
    run, log = Run(tmp_path / "run"), tmp_path / "log"
    argv = command(packed_sets, run.path, RECIPE, epochs=16)
    # As the third save begins there are two, however quick steps and saves are.
    kill = {"fault": "kill", "at": "save:begun", "count": 3}
    assert trainers.train(argv, log, faults=[kill]) == [-9]
    checkpoints = Checkpoints(run.path)
    newest, older = [n for n in checkpoints.names() if manifest_of(checkpoints.folder / n)][:2]
    DAMAGE[damage](checkpoints.folder / newest)
    again = {"fault": "kill", "at": "starting"}
    stop_here = {"fault": "kill", "at": "forward"}
    assert trainers.train(argv, log, faults=[stop_here]) == [-9]
    assert (checkpoints.folder / f"{newest}.torn").is_dir()
    assert trainers.train(argv, log, faults=[again]) == [-9]
    start = next(s for s in reversed(run.starts()))
    assert (start["step"], start["torn"]) == (int(older.split("-")[0]), [newest])
    assert resume(trainers, argv, run, log) == (int(older.split("-")[0]), [])
    assert not list(checkpoints.folder.glob("*.torn"))
    assert f"checkpoint {newest} is torn" in log.read_text()
    assert_bit_equal(run, reference)
