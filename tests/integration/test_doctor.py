"""`stoker doctor` as people type it: on a packed set, on a folder, on nothing, and stopped."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from integration.processes import finish, start
from samples import image_folder
from stoker.errors import BAD_REQUEST, FINISHED, INTERRUPTED

QUICK = ["--model", "resnet9_w1", "--image-size", "16", "--batch-size", "16", "--seconds", "0.5"]


@pytest.fixture
def cwd(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def left(cwd: Path) -> list[str]:
    return sorted(path.name for path in cwd.iterdir())


def test_a_packed_set_is_examined_in_all_respects(packed: Path, cwd: Path) -> None:
    before = sorted(packed.parent.rglob("*"))
    words = ["doctor", str(packed), *QUICK, "--json", "figures.json"]
    code, printed = finish(start(words, cwd))
    assert code == FINISHED, printed
    sections = [line for line in printed.splitlines() if line and not line.startswith(" ")]
    assert [line.split()[0] for line in sections] == [
        "This",
        "The",
        "Loading,",
        "Computing,",
        "All",
    ]
    for name in ("read in a row", "read at random", "loader warm", "fp32", "stoker train"):
        (line,) = [line for line in printed.splitlines() if line.startswith(f"  {name} ")]
        assert "images/s" in line
    assert "  slowed by " in printed and "  next: " in printed and "the parts allow" in printed
    figures = json.loads((cwd / "figures.json").read_text())
    assert set(figures) >= {"environment", "storage", "loader", "compute", "together", "forecast"}
    assert figures["forecast"]["images_per_s"] > 0
    assert left(cwd) == ["figures.json"]
    assert sorted(packed.parent.rglob("*")) == before


def test_a_folder_of_images_is_sent_to_be_packed(cwd: Path) -> None:
    image_folder(cwd / "photos", classes=2, images=5, val=1)
    code, printed = finish(start(["doctor", "photos", *QUICK], cwd))
    assert code == FINISHED, printed
    assert "not measured" in printed and "stoker pack photos" in printed
    assert "read at random" in printed and "fp32" in printed
    assert "stoker train " not in printed
    assert left(cwd) == ["photos"]


def test_without_a_set_the_folder_and_the_model_are_examined(cwd: Path) -> None:
    code, printed = finish(start(["doctor", *QUICK], cwd))
    assert code == FINISHED, printed
    assert "The disk of this folder" in printed and "onto the disk" in printed
    assert "fp32" in printed and "Loading" not in printed
    assert left(cwd) == []


def test_a_batch_that_no_memory_holds_ends_in_a_sentence(cwd: Path) -> None:
    words = ["--model", "resnet9_w64", "--image-size", "128", "--batch-size", "10000000"]
    words += ["--seconds", "0.5"]
    code, printed = finish(start(["doctor", *words], cwd))
    assert code == BAD_REQUEST, printed
    assert "GB are free: lower --batch-size" in printed
    assert "Traceback" not in printed
    assert left(cwd) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_leaves_nothing(number: signal.Signals, cwd: Path) -> None:
    process = start(["doctor", "--seconds", "1800", "--model", "resnet9_w1"], cwd)
    assert process.stdout is not None
    while "The disk" not in process.stdout.readline():
        assert process.poll() is None
    os.kill(process.pid, number)
    code, printed = finish(process)
    assert code == INTERRUPTED, printed
    assert "nothing was changed" in printed and "Traceback" not in printed
    assert left(cwd) == []
