"""stoker bench train with real processes: every outcome is a row, and nothing is left running."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bench_results import row
from integration.processes import finish, start, wait_until
from stoker.data.dataset import Dataset
from stoker.plan.bench.cells import BenchCell
from stoker.plan.bench.process import CellLimits
from stoker.plan.bench.result import BenchResult, read_result, write_result
from stoker.plan.bench.session import ModelRecipe, planned
from stoker.recipe.recipe import Recipe

pytestmark = [pytest.mark.timeout(400)]
MODEL = '''"""A model that ends as its batch size says."""

import os
import subprocess
import sys
import time

from torch import nn


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        layers = [nn.Conv2d(8 if n else 3, 8, 3, padding=1) for n in range(24)]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        if self.training and not x.is_meta and x.shape[0] == 12:
            os.abort()
        if self.training and not x.is_meta and x.shape[0] == 20:
            # A child that leaves the process group, as a loader of the user's own may.
            words = [sys.executable, "-c", "import time; time.sleep(600)", "MARK"]
            subprocess.Popen(words, start_new_session=True)
            time.sleep(600)
        return self.head(self.body(x).mean((2, 3)))


def build(classes):
    return Net(classes)
'''
QUICK = [
    "--image-size",
    "16",
    "--steps",
    "2",
    "--repeats",
    "5",
    "--out",
    "bench.json",
    "--machine",
    "here",
]


def processes_with(text: str) -> list[int]:
    """The processes of this machine whose command line has a text."""
    pids = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                words = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in words:
                pids.append(int(folder.name))
    return pids


def wait_for_none(text: str) -> None:
    give_up = time.monotonic() + 60
    while pids := processes_with(text):
        assert time.monotonic() < give_up, pids
        time.sleep(0.05)


def rows_of(folder: Path) -> dict[tuple[str, int], str]:
    result = read_result(folder / "bench.json")
    return {(row.cell.model, row.cell.batch_size): row.outcome for row in result.rows}


def own_model(folder: Path) -> str:
    """The model's flag; processes of this test have the folder's name in their command line."""
    (folder / "net.py").write_text(MODEL.replace("MARK", folder.name))
    return "./net.py:build"


def bench(folder: Path, *words: str) -> tuple[int, str, BenchResult]:
    variables = {"TMPDIR": str(folder)}
    code, printed = finish(start(["bench", "train", *words, *QUICK], folder, variables))
    assert (folder / "bench.json").exists(), printed
    return code, printed, read_result(folder / "bench.json")


def test_memory_crash_and_figures_are_rows(packed: Path, tmp_path: Path) -> None:
    words = [str(packed), "--model", own_model(tmp_path), "--batch-size", "8,12,16384"]
    code, printed, result = bench(
        tmp_path, *words, "--memory-limit", "1.6", "--price-per-hour", "2", "--time-limit", "120"
    )
    assert code == 0, printed
    assert list(rows_of(tmp_path).values()) == ["ok", "crashed", "out of memory"], printed
    best, crash, large = result.rows
    assert "SIGABRT" in crash.reason
    assert "--memory-limit 1.6 GB" in large.reason
    assert best.figures is not None and best.speed is not None
    assert len(best.figures.rates) == 5
    assert best.figures.warm_up_steps >= 5 and best.figures.warm_up_s > 0
    assert best.figures.memory_bytes > 100e6 and best.figures.flops_per_image
    assert best.figures.limit and 0 <= best.figures.data_share <= 1
    assert printed.count("\n") > 8 and "net.py:build" in printed
    assert not processes_with(tmp_path.name)
    assert not list(tmp_path.glob("stoker-bench-*"))


def test_a_stopped_and_a_killed_benchmark_leave_nothing_and_go_on(
    packed: Path, tmp_path: Path
) -> None:
    model = own_model(tmp_path)
    words = [str(packed), "--model", model, "--batch-size", "8,20"]
    variables = {"TMPDIR": str(tmp_path)}

    def rows() -> int:
        file = tmp_path / "bench.json"
        return len(json.loads(file.read_text())["rows"]) if file.exists() else 0

    for number, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 75)):
        process = start(["bench", "train", *words, *QUICK], tmp_path, variables)
        # The second cell hangs, with a child in a session of its own.
        wait_until(lambda: rows() == 1 and len(processes_with(tmp_path.name)) > 2, process)
        wait_until(lambda: hangs(tmp_path.name), process)
        os.kill(process.pid, number)
        assert finish(process)[0] == code
        wait_for_none(tmp_path.name)
        assert rows_of(tmp_path) == {("net.py:build", 8): "ok"}
    code, printed, _ = bench(tmp_path, *words, "--time-limit", "5")
    assert code == 0
    assert rows_of(tmp_path)["net.py:build", 20] == "timed out"
    assert "1 of them in the file already" in printed
    assert not processes_with(tmp_path.name)


def hangs(name: str) -> bool:
    """Whether the child of the second cell runs."""
    return any(
        b"sleep(600)" in Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes_with(name)
    )


def test_a_row_of_two_ranks_is_measured_again(packed: Path, tmp_path: Path) -> None:
    """A rate far above what this machine reaches: the answer is known."""
    cell = BenchCell("resnet9_w4", 16, 8, "fp32", 2)
    models = {cell.model: ModelRecipe(Recipe(model=cell.model), None)}
    limits = CellLimits(2, 5, 120.0, 0.0)
    plan = planned(Dataset(packed), [cell], models, limits, ("here", "defaults"), None)
    claim = replace(row(1e9), cell=cell)
    write_result(tmp_path / "bench.json", plan.with_row(claim))
    code, printed = finish(start(["bench", "reproduce", "bench.json"], tmp_path))
    assert code == 1, printed
    assert "the same machine and software" in printed
    assert "resnet9_w4 16 px batch 8 fp32, 2 ranks" in printed
    (now,) = read_result(tmp_path / "bench-again.json").rows
    assert now.outcome == "ok" and now.speed is not None, now.reason
    assert printed.count("differs") == 1
