"""A ticket study as one SLURM array, with lost nodes, a preemption and killed cells: it ends with
the bytes of a serial one, and no cell has run to its end twice."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cluster.conftest import MODEL, Desk, slow
from grids import finished
from shares import rotation
from stoker.fleet.grid.cell import Plan
from stoker.fleet.grid.directory import Grid
from stoker.run.directory import Run
from studies import run_cells_here, run_of
from tiny_runs import one_thread_alone
from waiting import TimedOut, until

__all__ = ["one_thread_alone"]
pytestmark = [pytest.mark.exact, pytest.mark.timeout(1500)]
STUDY = [
    *("tickets", "packed", *MODEL, "--epochs", "2", "--checkpoint-interval", "1", "--keep", "12.5"),
    *("--rounds", "50%", "--rewind", "1ep", "--replicates", "3", "--compute-threads", "1"),
]
"""For each replicate three dense cells (to epochs 0, 1 and 2), three rounds and two controls."""
CELLS, KILLS, STUDY_S, NOTICED_S = 24, 5, 900, 60
TASKS = ("--on", "slurm", "--workers", "4", "--time", "30")
SITE = "[sbatch]\nexclude = 'n3'\n"
"""So there are two tasks on each of the nodes n1 and n2."""


@dataclass
class Trouble:
    """What goes wrong while an array works on a grid."""

    desk: Desk
    grid: Grid
    chance: random.Random
    killed: set[str] = field(default_factory=set)
    lost: str = ""
    """The node that is dead now."""

    def running(self, node: str = "") -> dict[str, int]:
        """The processes that run cells, by cell: all, or those on a node."""
        cells = {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError):
                command = (folder / "cmdline").read_bytes()
                text = (folder / "environ").read_bytes().decode(errors="replace")
                variables = dict(each.partition("=")[::2] for each in text.split("\0"))
                cell = Path(variables.get("STOKER_CELL", ""))
                is_there = not node or variables.get("SLURMD_NODENAME") == node
                ours = cell.parent == self.grid.path / "cells" and is_there
                if ours and b"stoker.study.tickets.cells" in command:
                    cells[cell.name] = int(folder.name)
        return cells

    def kill_cell(self) -> None:
        """Kill a cell that was not killed before, somewhere in its work."""
        while True:
            others = self.desk.wait(
                lambda: {c: pid for c, pid in self.running().items() if c not in self.killed}
            )
            cell, pid = self.chance.choice(sorted(others.items()))
            leases, steps = len(self.grid.ends(cell)), self.steps(cell)
            moment = steps + self.chance.randrange(10)
            self.desk.wait(
                lambda cell=cell, moment=moment: (
                    self.steps(cell) >= moment or cell not in self.running()
                )
            )
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.desk.wait(
                lambda cell=cell, leases=leases: "code" in self.grid.ends(cell)[leases - 1]
            )
            if self.grid.ends(cell)[leases - 1]["code"] == -signal.SIGKILL:
                self.killed.add(cell)
                return

    def steps(self, cell: str) -> int:
        return len(run_of(self.grid, cell).merged("step"))

    def lose_node(self, node: str) -> None:
        """A node dies under its cells; it stays dead until `return_node`."""
        self.return_node()
        self.desk.wait(lambda: self.running(node))
        self.desk.cluster.kill_node(node)
        self.lost = node

    def return_node(self) -> None:
        """The dead node returns, after SLURM has noticed. Where that takes long, SLURM learns from
        the node that its jobs are gone."""
        if not self.lost:
            return
        look = ("sinfo", "--noheader", f"--nodes={self.lost}", "--format=%T")
        with suppress(TimedOut):
            until(lambda: "down" in self.desk.cluster.call(*look), NOTICED_S, 0.5)
        self.desk.cluster.start_node(self.lost)
        self.lost = ""

    def preempt(self) -> None:
        """A job of a higher partition takes a node from its cells."""
        self.return_node()
        self.desk.wait(lambda: self.running("n1"))
        words = ("--partition=high", "--nodelist=n1", "--exclusive", "--parsable")
        job = self.desk.cluster.call(
            "sbatch", *words, "--output=/dev/null", "--wrap", "sleep 1"
        ).strip()
        assert self.desk.wait_for_end(job) == "COMPLETED"

    def all(self) -> None:
        faults: list[Callable[[], None]] = [self.kill_cell] * KILLS
        faults += [lambda: self.lose_node("n1"), lambda: self.lose_node("n2"), self.preempt]
        self.chance.shuffle(faults)
        try:
            for fault in faults:
                fault()
        finally:
            self.return_node()


@pytest.mark.rotates(4)
def test_a_study_of_24_cells_survives_its_cluster(desk: Desk) -> None:
    desk.variables = slow(1.0)  # a cell works long enough that there are some left for each fault
    (desk.folder / "slurm.toml").write_text(SITE)
    desk.submit(*STUDY, *TASKS, "--out", "study")
    grid = Grid(desk.folder / "study")
    (file,) = (grid.path / "plans").glob("*.jsonl")
    plan = grid.plan(file.stem)
    assert len(plan.cells) == CELLS
    trouble = Trouble(desk, grid, random.Random(rotation()))
    trouble.all()
    code, printed = desk.stoker(*STUDY, *TASKS, "--out", "study", "--wait", within_s=STUDY_S)
    assert code == 0, printed + desk.everything()
    assert_survived(trouble, plan)

    serial = run_cells_here(plan.cells.values(), desk.folder / "serial", desk.folder / "packed")
    for cell in plan.cells:
        assert result_bytes(grid, cell) == result_bytes(serial, cell), plan.cells[cell].label
        assert trained(run_of(grid, cell)) == trained(run_of(serial, cell))
    assert table_of(desk, "study") == table_of(desk, "serial")


def assert_survived(trouble: Trouble, plan: Plan) -> None:
    """Every fault happened, no second array was submitted, each cell has run to its end once."""
    desk, grid = trouble.desk, trouble.grid
    assert len(trouble.killed) == KILLS
    outcomes = sum((Counter(e["outcome"] for e in grid.ends(c)) for c in plan.cells), Counter())
    assert outcomes["lost"] >= KILLS, "and those on the two nodes, unless one ended just then"
    assert outcomes["failed"] == 0
    assert [finished(grid, cell) for cell in plan.cells] == [1] * CELLS
    assert len((grid.path / "slurm" / "submitted.jsonl").read_text().splitlines()) == 1
    assert re.search(": preempted at|DUE TO PREEMPTION", desk.everything())


def result_bytes(grid: Grid, cell: str) -> bytes:
    return (grid.cell_path(cell) / "result.json").read_bytes()


def trained(run: Run) -> tuple[list[Any], int]:
    """What each step had and gave, and how often the run has reached an end."""
    steps = [(each["step"], each["position"], each["batch"], each["sums"]) for each in run.steps()]
    ends = [event for event in run.events() if event["kind"] == "end"]
    return steps, sum(end["outcome"] == "finished" for end in ends)


def table_of(desk: Desk, out: str) -> tuple[str, dict[str, Any]]:
    """What the study prints and writes, but for the time that it took."""
    code, printed = desk.stoker(*STUDY, "--out", out, "--status", "--json", f"{out}.json")
    assert code == 0, printed
    assert f"{CELLS} cells: {CELLS} done" in printed
    figures = json.loads((desk.folder / f"{out}.json").read_bytes())
    figures.pop("seconds_in_cells")
    return re.sub(r"^(time in cells|wrote).*\n", "", printed, flags=re.MULTILINE), figures
