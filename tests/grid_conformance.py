"""What every backend of grids has to keep: one suite, over local processes and a SLURM array.

A subclass is collected where its backend can run, and has a fixture `place`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from grids import DONE, Plan, cell, chain_grid, finished, make, runs_of
from stoker.errors import FINISHED
from stoker.fleet.grid.directory import MOST_FAILURES, Grid
from waiting import until

WAITS = "touch work/waits; while ! test -e ../../go; do sleep 0.02; done; " + DONE
SAVES = "trap 'echo saved >> work/saved; exit 75' TERM; " + WAITS


class Workers(Protocol):
    """Workers that were started."""

    def wait(self) -> int:
        """Returns their exit code when they have ended."""
        ...

    def stop(self) -> None:
        """Ask them to stop, and wait until they have."""
        ...


class WorkerPlace(Protocol):
    """Where workers run."""

    def start(self, grid: Grid, plan: str, workers: int) -> Workers: ...


class GridConformance:
    """The suite."""

    def complete(self, place: WorkerPlace, grid: Grid, plan: str, workers: int = 2) -> int:
        return place.start(grid, plan, workers).wait()

    def test_each_cell_once_and_parents_first(self, place: WorkerPlace, tmp_path: Path) -> None:
        plan = chain_grid(12, 3)
        grid, digest = make(tmp_path / "grid", plan)
        assert self.complete(place, grid, digest, 3) == FINISHED
        assert grid.status(plan).count("done") == 12
        assert all(runs_of(grid, name) == finished(grid, name) == 1 for name in plan.cells)

    def test_what_is_missing_runs_again_and_nothing_else(
        self, place: WorkerPlace, tmp_path: Path
    ) -> None:
        plan = Plan()
        bad = plan.add(cell("bad", "echo the reason >&2; exit 1"))
        child = plan.add(cell("child", DONE, (bad,)))
        good = plan.add(cell("good"))
        grid, digest = make(tmp_path / "grid", plan)
        assert self.complete(place, grid, digest) == FINISHED
        status = grid.status(plan)
        assert [status.states[name] for name in (bad, child, good)] == ["failed", "blocked", "done"]
        assert runs_of(grid, bad) == MOST_FAILURES
        assert "the reason" in grid.failures(bad)[-1]["output"]
        grid.forgive([bad])
        assert self.complete(place, grid, digest) == FINISHED
        assert runs_of(grid, bad) == 2 * MOST_FAILURES
        assert runs_of(grid, good) == 1

    def test_a_killed_command_goes_on_where_it_was(
        self, place: WorkerPlace, tmp_path: Path
    ) -> None:
        script = "test -e work/half || { touch work/half; kill -9 $$; }; " + DONE
        plan = Plan.of([it := cell("it", script)])
        grid, digest = make(tmp_path / "grid", plan)
        assert self.complete(place, grid, digest, 1) == FINISHED
        assert (runs_of(grid, it.id), finished(grid, it.id)) == (2, 1)

    def test_a_stop_lets_commands_save_and_the_same_plan_goes_on(
        self, place: WorkerPlace, tmp_path: Path
    ) -> None:
        plan = Plan.of(cells := [cell("it", SAVES), cell("other", SAVES)])
        grid, digest = make(tmp_path / "grid", plan)
        workers = place.start(grid, digest, 2)
        for each in cells:
            until((grid.cell_path(each.id) / "work/waits").exists, every_s=0.1)
        workers.stop()
        for each in cells:
            assert (grid.cell_path(each.id) / "work/saved").exists()
            assert grid.ends(each.id)[-1]["outcome"] == "interrupted"
        (grid.path / "go").touch()
        assert self.complete(place, grid, digest) == FINISHED
        assert all(finished(grid, each.id) == 1 for each in cells)

    @pytest.mark.parametrize("part", ["worker", "command"])
    def test_a_kill_costs_a_try(self, place: WorkerPlace, tmp_path: Path, part: str) -> None:
        parent = "kill -9 $PPID; sleep 60" if part == "worker" else "kill -9 $$"
        script = f"test -e work/half || {{ touch work/half; {parent}; }}; {DONE}"
        plan = Plan.of([it := cell("it", script)])
        grid, digest = make(tmp_path / "grid", plan)
        assert self.complete(place, grid, digest, 2) == FINISHED
        assert (runs_of(grid, it.id), finished(grid, it.id)) == (2, 1)
