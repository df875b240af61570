"""`stoker tickets` as a user meets it: killed, gone on with, and the bits of a serial study."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from integration.processes import finish, slow_steps, start, steps_done, wait_until
from stoker.fleet.grid.cell import Plan
from stoker.fleet.grid.directory import Grid
from stoker.run.directory import Run
from studies import run_cells_here
from tiny_runs import one_thread_alone

__all__ = ["one_thread_alone"]
pytestmark = pytest.mark.exact

FLAGS = [
    *("--model", "resnet9_w4", "--image-size", "16", "--batch-size", "100", "--epochs", "2"),
    *("--keep", "20", "--rewind", "1ep", "--rounds", "one-shot", "--replicates", "1"),
    *("--workers", "2", "--compute-threads", "1", "--out", "out", "--json", "all.json"),
]


def plan_of(grid: Grid) -> Plan:
    (file,) = (grid.path / "plans").glob("*.jsonl")
    return grid.plan(file.stem)


def results(grid: Grid) -> dict[str, object]:
    return {cell: grid.result(cell) for cell in plan_of(grid).cells}


def test_a_killed_study_goes_on_to_the_bits_of_a_serial_one(packed: Path, tmp_path: Path) -> None:
    words, grid = ["tickets", str(packed), *FLAGS], Grid(tmp_path / "out")
    process = start(words, tmp_path, slow_steps())

    def pruned() -> list[Run]:
        runs = [Run(path) for path in (tmp_path / "out" / "cells").glob("*/work/run")]
        return [run for run in runs if run.masks and steps_done(run, 3) >= 1]

    wait_until(lambda: len(pruned()) == 2, process)
    trainer = int((pruned()[0].path / "lock").read_text().split()[1])
    os.kill(trainer, signal.SIGKILL)
    process.send_signal(signal.SIGKILL)
    finish(process)
    assert sum(grid.is_done(cell) for cell in plan_of(grid).cells) == 3

    code, printed = finish(start(words, tmp_path))
    assert code == 0, printed
    for line in ("6 cells: 6 done", "not evidence of a ticket: it has fewer than 3 replicates"):
        assert line in printed
    assert "  speed   " in printed
    outcomes = [Counter(end["outcome"] for end in grid.ends(cell)) for cell in plan_of(grid).cells]
    assert all(counts["finished"] == 1 for counts in outcomes)
    assert sum(counts["lost"] + counts["interrupted"] for counts in outcomes) >= 2

    serial = run_cells_here(plan_of(grid).cells.values(), tmp_path / "serial", packed)
    assert results(grid) == {cell: serial.result(cell) for cell in plan_of(grid).cells}
    figures = json.loads((tmp_path / "all.json").read_bytes())
    assert figures["one_ticket"]["zeros"] > 0
    assert (tmp_path / "out" / "tickets.svg").read_text().startswith("<svg")
