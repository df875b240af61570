"""Grids with real workers on this machine: commands, signals and kills.

Each cell's result is committed once, whatever is killed; what is missing runs when the same command
is given again; what was planned is what runs.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grid_conformance import SAVES, WAITS, GridConformance, WorkerPlace
from grids import Plan, cell, chain_grid, finished, make, runs_of
from stoker.errors import FINISHED, INTERRUPTED
from stoker.fleet.grid.directory import MOST_LOST, Grid
from waiting import until

pytestmark = pytest.mark.exact

LAUNCH = (
    "import signal, sys; from pathlib import Path\n"
    "from stoker.fleet.grid.directory import Grid\n"
    "from stoker.fleet.grid.local import run_workers\n"
    "from stoker.survive.stopping import listening\n"
    "folder, plan, workers = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])\n"
    "grid = Grid(folder); cells = grid.plan(plan)\n"
    "with listening() as stop:\n"
    "    sys.exit(run_workers(folder, plan, workers, lambda: signal.SIGTERM if stop else None,\n"
    "                         lambda: grid.status(cells).count('done')))\n"
)


def launch(grid: Grid, plan: str, workers: int = 2) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", LAUNCH, str(grid.path), plan, str(workers)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)


def complete(grid: Grid, plan: str, workers: int = 2) -> int:
    return launch(grid, plan, workers).wait(timeout=300)


class LocalLaunch:
    """A launcher as a process, with workers on this machine."""

    def __init__(self, grid: Grid, plan: str, workers: int) -> None:
        self._process = launch(grid, plan, workers)

    def wait(self) -> int:
        return self._process.wait(timeout=300)

    def stop(self) -> None:
        self._process.terminate()
        assert self.wait() == INTERRUPTED


class LocalPlace:
    def start(self, grid: Grid, plan: str, workers: int) -> LocalLaunch:
        return LocalLaunch(grid, plan, workers)


class TestLocalWorkers(GridConformance):
    @pytest.fixture
    def place(self) -> WorkerPlace:
        return LocalPlace()


def processes_of(grid: Grid, word: str) -> list[int]:
    """Running processes whose command line or variables name the grid and hold a word."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            variables = (folder / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if word in command and str(grid.path) in command + variables:
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("script", [":", "echo not json > draft.json", "mkdir -p draft.json"])
def test_a_command_without_a_result_has_failed(tmp_path: Path, script: str) -> None:
    plan = Plan.of([bad := cell("bad", script)])
    grid, digest = make(tmp_path / "grid", plan)
    assert complete(grid, digest, 1) == FINISHED
    assert grid.status(plan).count("failed") == 1
    assert "no result" in grid.failures(bad.id)[-1]["output"]


@pytest.mark.parametrize("script", ["kill -9 $$", "exit 75"])
def test_a_command_that_never_gets_on_is_not_tried_for_ever(tmp_path: Path, script: str) -> None:
    plan = Plan.of([it := cell("it", script)])
    grid, digest = make(tmp_path / "grid", plan)
    assert complete(grid, digest, 1) == FINISHED
    assert runs_of(grid, it.id) == MOST_LOST
    assert grid.status(plan).count("failed") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_stop_signal_reaches_the_commands_and_the_same_command_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    plan = Plan.of([it := cell("it", SAVES), other := cell("other", SAVES)])
    grid, digest = make(tmp_path / "grid", plan)
    launcher = launch(grid, digest)
    for each in (it, other):
        until((grid.cell_path(each.id) / "work/waits").exists)
    launcher.send_signal(number)
    assert launcher.wait(timeout=60) == INTERRUPTED
    assert not processes_of(grid, "")
    for each in (it, other):
        assert (grid.cell_path(each.id) / "work/saved").exists()
        assert grid.ends(each.id)[-1]["outcome"] == "interrupted"
    (grid.path / "go").touch()
    assert complete(grid, digest) == FINISHED
    assert all(finished(grid, each.id) == 1 for each in (it, other))


@pytest.mark.parametrize("victim", ["launcher", "worker"])
def test_a_kill_leaves_no_process_and_no_lease_behind(tmp_path: Path, victim: str) -> None:
    plan = Plan.of([it := cell("it", WAITS)])
    grid, digest = make(tmp_path / "grid", plan)
    launcher = launch(grid, digest, 1)
    until((grid.cell_path(it.id) / "work/waits").exists)
    if victim == "launcher":
        launcher.kill()
        launcher.wait()
        until(lambda: not processes_of(grid, ""))
        launcher = launch(grid, digest, 1)
    else:
        (worker,) = processes_of(grid, "stoker work")
        os.kill(worker, signal.SIGKILL)
    until(lambda: runs_of(grid, it.id) == 2)
    (grid.path / "go").touch()
    assert launcher.wait(timeout=60) == FINISHED
    assert finished(grid, it.id) == 1


def test_two_launchers_share_the_work(tmp_path: Path) -> None:
    plan = chain_grid(20, 2)
    grid, digest = make(tmp_path / "grid", plan)
    both = [launch(grid, digest, 2), launch(grid, digest, 2)]
    assert [each.wait(timeout=300) for each in both] == [FINISHED, FINISHED]
    assert all(runs_of(grid, name) == 1 for name in plan.cells)


def test_what_was_planned_does_not_change(tmp_path: Path) -> None:
    plan = chain_grid(2, 1)
    grid, digest = make(tmp_path / "grid", plan)
    file = grid.path / "plans" / f"{digest}.jsonl"
    text = file.read_text()
    file.write_text(text.replace("value", "other"))
    assert complete(grid, digest) != FINISHED
    assert grid.status(plan).count("done") == 0
    file.write_text(text)
    assert complete(grid, digest) == FINISHED


def wait_for_another(grid: Grid, plan: Plan, launcher: subprocess.Popen[bytes]) -> None:
    """Until one more cell is done, or all have ended."""
    before = grid.status(plan).count("done")
    until(lambda: launcher.poll() is not None or grid.status(plan).count("done") > before)


def test_random_kills_of_workers_and_commands(tmp_path: Path, whole: bool) -> None:
    """Ten thousand cells with two hundred kills are benchmarks/grids.py."""
    cells, kills = (2000, 100) if whole else (120, 12)
    plan = chain_grid(cells, 4)
    grid, digest = make(tmp_path / "grid", plan)
    launcher, chance, killed = launch(grid, digest, 4), random.Random(4), 0
    while launcher.poll() is None and killed < kills:
        done = grid.status(plan).count("done")
        until(
            lambda done=done: grid.status(plan).count("done") > done or launcher.poll() is not None
        )
        if victims := processes_of(grid, chance.choice(["stoker work", "sh -c"])):
            try:
                os.kill(chance.choice(victims), signal.SIGKILL)
                killed += 1
            except ProcessLookupError:
                pass
    assert killed == kills
    assert launcher.wait(timeout=600) == FINISHED
    assert grid.status(plan).count("done") == cells
    assert all(finished(grid, name) <= 1 for name in plan.cells)
