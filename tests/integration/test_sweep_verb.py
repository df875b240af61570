"""`stoker sweep` as a user meets it: a table in the end, whatever happened on the way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.processes import finish, slow_steps, start, steps_done, wait_until
from stoker.commit import sha256_file
from stoker.fleet.grid.directory import Grid
from stoker.run.directory import Run
from stoker.survive.manifest import checkpoint_folder

pytestmark = pytest.mark.exact

FLAGS = [
    *("--model", "resnet9_w8", "--image-size", "32", "--batch-size", "50"),
    *("--epochs", "2", "--compute-threads", "1"),
]


def sweep(packed: Path, *more: str) -> list[str]:
    return ["sweep", str(packed), "--out", "out", *FLAGS, *more]


def runs(folder: Path) -> list[Run]:
    return [Run(path) for path in sorted((folder / "out" / "cells").glob("*/work/run"))]


def results(folder: Path) -> dict[str, dict[str, object]]:
    """The results by the hash of the weights."""
    files = (folder / "out" / "cells").glob("*/result.json")
    every = [json.loads(file.read_bytes()) for file in files]
    return {str(result["weights"]): result for result in every if "weights" in result}


@contextmanager
def one_core() -> Iterator[None]:
    """A block in which processes are started that compute with one thread."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


def test_a_stopped_sweep_goes_on_and_its_runs_are_those_of_train(
    packed: Path, tmp_path: Path
) -> None:
    words = sweep(packed, "--set", "lr=0.02,0.2", "--workers", "2")
    process = start(words, tmp_path, slow_steps())
    wait_until(
        lambda: len(runs(tmp_path)) == 2 and all(steps_done(r, 1) >= 2 for r in runs(tmp_path)),
        process,
    )
    process.send_signal(signal.SIGTERM)
    code, printed = finish(process)
    assert code == 75, printed
    assert "the same command goes on" in printed
    assert not results(tmp_path)

    code, printed = finish(start(words, tmp_path))
    assert code == 0, printed
    assert "2 cells: 2 done" in printed
    assert [len(run.attempts()) for run in runs(tmp_path)] == [2, 2]

    train = ["train", str(packed), "--run", "alone", *FLAGS[:-2], "--lr", "0.2"]
    with one_core():
        code, printed = finish(start(train, tmp_path))
    assert code == 0, printed
    weights = checkpoint_folder(tmp_path / "alone", "last") / "weights.safetensors"
    assert sha256_file(weights) in results(tmp_path)

    code, printed = finish(start(words, tmp_path))
    assert (code, "2 cells: 2 done" in printed) == (0, True)
    assert [len(run.attempts()) for run in runs(tmp_path)] == [2, 2]


def test_rungs_go_on_to_the_bits_of_a_run_without_them(packed: Path, tmp_path: Path) -> None:
    code, printed = finish(start(sweep(packed, "--set", "lr=0.02,0.2", "--halving", "2"), tmp_path))
    assert code == 0, printed
    (winner,) = [result for result in results(tmp_path).values() if "began" in result]
    assert winner["epoch"] == 2
    value = Grid(tmp_path / "out")
    began = json.loads((value.cell_path(str(winner["began"])) / "cell.json").read_bytes())
    rate = began["meaning"]["values"]["lr"]
    whole = [*sweep(packed, "--set", f"lr={rate}"), "--out", "whole"]
    code, printed = finish(start(whole, tmp_path))
    assert code == 0, printed
    (plain,) = (tmp_path / "whole" / "cells").glob("*/result.json")
    assert json.loads(plain.read_bytes())["weights"] == winner["weights"]


MODEL = """
from torch import nn

def build(classes):
    return nn.Sequential(nn.Conv2d(3, WIDTH, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(WIDTH, classes))
"""


def test_an_edit_after_the_start_changes_nothing(packed: Path, tmp_path: Path) -> None:
    model, recipe = tmp_path / "net.py", tmp_path / "mine.toml"
    model.write_text(MODEL.replace("WIDTH", "4"))
    recipe.write_text("momentum = 0.8\n")
    words = [*sweep(packed, "--set", "seed=0..1", "--recipe", "mine.toml")]
    words[words.index("--model") + 1] = "./net.py:build"
    process = start(words, tmp_path, slow_steps())
    wait_until(lambda: len(runs(tmp_path)) == 1 and steps_done(runs(tmp_path)[0], 1) >= 1, process)
    model.write_text(MODEL.replace("WIDTH", "5"))
    recipe.write_text("momentum = 0.7\n")
    code, printed = finish(process)
    assert code == 0, printed
    assert [run.values["momentum"] for run in runs(tmp_path)] == [0.8, 0.8]
    assert len({run.values["model_code"] for run in runs(tmp_path)}) == 1
    code, printed = finish(start([*words, "--status"], tmp_path))
    assert (code, "2 cells: 2 waiting" in printed) == (0, True)
