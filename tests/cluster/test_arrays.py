"""Grids as SLURM arrays: the suite of all backends, tasks that are preempted, nodes that die."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.conftest import MODEL, Desk
from cluster.slurm import SlurmCluster
from grid_conformance import WAITS, GridConformance, WorkerPlace
from grids import Plan, cell, finished, make, runs_of
from packing import contents
from stoker.fleet.grid.array import SlurmArray
from stoker.fleet.grid.directory import Grid
from stoker.fleet.slurm.commands import is_live
from waiting import until

pytestmark = [pytest.mark.exact, pytest.mark.timeout(600)]
OPTIONS = {"exclude": "n3", "time": "10"}


class ArrayWorkers:
    """An array that was submitted."""

    def __init__(
        self, cluster: SlurmCluster, grid: Grid, plan: str, tasks: int, **options: str
    ) -> None:
        self.cluster, self.grid, self.plan = cluster, grid, plan
        self.array = SlurmArray("grid", tasks, {**OPTIONS, **options}, wait=True)
        self.job = self.array.submit(grid, plan)

    def wait(self) -> int:
        """Waits for the array that was submitted; no second one is."""
        code = self.array.run(self.grid, self.plan, lambda: None)
        until(lambda: not is_live(self.job), every_s=0.5)
        return code

    def stop(self) -> None:
        self.cluster.call("scancel", self.job)
        until(lambda: not is_live(self.job), every_s=0.5)


class TestSlurmArray(GridConformance):
    @pytest.fixture
    def place(self, cluster: SlurmCluster) -> WorkerPlace:
        class Place:
            def start(self, grid: Grid, plan: str, workers: int) -> ArrayWorkers:
                return ArrayWorkers(cluster, grid, plan, workers)

        return Place()


def test_a_preempted_task_is_queued_again_alone(cluster: SlurmCluster, tmp_path: Path) -> None:
    script = "trap 'exit 75' TERM; " + WAITS
    plan = Plan.of(cells := [cell("one", script), cell("two", script)])
    grid, digest = make(tmp_path / "grid", plan)
    workers = ArrayWorkers(cluster, grid, digest, 2, exclusive="")
    for each in cells:
        until((grid.cell_path(each.id) / "work/waits").exists, every_s=0.1)
    words = ("--partition=high", "--nodelist=n1", "--exclusive", "--parsable", "--output=/dev/null")
    high = cluster.call("sbatch", *words, "--wrap", "sleep 1").strip()
    until(lambda: cluster.ended(high), every_s=0.5)
    (grid.path / "go").touch()
    assert workers.wait() == 0
    assert sorted(runs_of(grid, each.id) for each in cells) == [1, 2]
    assert all(finished(grid, each.id) == 1 for each in cells)
    ends = [file.read_text().count('"requeued": true') for file in grid.path.rglob("ends-*")]
    assert sum(ends) == 1


def test_a_pack_with_a_killed_node_has_the_bytes_of_a_local_one(desk: Desk) -> None:
    flags = ("--codec", "raw", "--shard-images", "8")
    code, printed = desk.stoker("pack", "pictures", "here", *flags)
    assert code == 0, printed
    words = ("pack", "pictures", "there", *flags, "--on", "slurm", "--tasks", "2")
    job = desk.submit(*words, "--site", "/dev/null", "--time", "10")
    desk.wait(lambda: list((desk.folder / "there").glob("*/*.tar")))
    desk.cluster.kill_node("n2")
    desk.cluster.start_node("n2")
    code, printed = desk.stoker(*words, "--wait")
    assert code == 0, printed + desk.everything()
    assert contents(desk.folder / "there") == contents(desk.folder / "here")
    desk.wait_for_end(job)
    code, printed = desk.stoker(*words)
    assert (code, "packed already" in printed) == (0, True)


@pytest.mark.rotates(4)
def test_a_sweep_as_an_array_has_the_results_of_a_local_one(desk: Desk) -> None:
    desk.variables = {}
    words = ["sweep", "packed", *MODEL, "--epochs", "1", "--set", "lr=0.02,0.2"]
    local = [*words, "--out", "here", "--compute-threads", "1"]
    code, printed = desk.stoker(*local)
    assert code == 0, printed
    away = [*words, "--out", "there", "--on", "slurm", "--workers", "2", "--wait"]
    code, printed = desk.stoker(*away)
    assert code == 0, printed + desk.everything()
    assert "2 cells: 2 done" in printed
    assert results(desk.folder / "here") == results(desk.folder / "there")


def results(grid: Path) -> dict[str, bytes]:
    return {file.parent.name: file.read_bytes() for file in grid.glob("cells/*/result.json")}
