"""`--batch-size` and `--image-size` change the phases of a recipe in every verb, which says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from samples import image_folder
from stoker.cli import main, sweep
from stoker.data.packing.pack import pack
from stoker.errors import FINISHED
from stoker.run.directory import Run
from stoker.survive.stopping import StopRequest

RECIPE = """model = "resnet9_w4"
epochs = 2
batch_size = 4
[[phases]]
from_epoch = 0
image_size = 16
batch_size = 8
[[phases]]
from_epoch = 1
image_size = 32
batch_size = 4
"""
NOTE = "note: --batch-size 2 changes this recipe in proportion: batches of 4, 2 images (before: "


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pack(image_folder(Path("photos"), classes=2, images=6), Path("packed"))
    Path("mine.toml").write_text(RECIPE)


@pytest.mark.parametrize(
    "words",
    [
        "train packed --recipe mine.toml --batch-size 2 --run run --no-report",
        "plan packed --recipe mine.toml --batch-size 2 --gpu T4",
        "doctor --memory 8 --recipe mine.toml --batch-size 2",
        "show-config --recipe mine.toml --batch-size 2",
        "sweep packed --recipe mine.toml --batch-size 2 --set seed=0,1 --status",
        "sweep packed --recipe mine.toml --set batch_size=2,4 --status",
    ],
)
def test_the_command_says_what_it_changes(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == FINISHED
    out = capsys.readouterr().out
    assert out.count(NOTE) == 1
    if words.startswith("train"):
        steps = [event["batch"] for event in Run("run").merged("step")]
        assert steps[0] == 4
        assert steps[-1] == 2


def test_an_axis_of_sizes_changes_what_is_trained() -> None:
    words = "packed --recipe mine.toml --set batch_size=2,4 --set image_size=32,64 --out out"
    planned = sweep.plan(sweep.parser().parse(words.split()), StopRequest())[0].plan
    phases = [
        [(phase["batch_size"], phase["image_size"]) for phase in cell.meaning["values"]["phases"]]
        for cell in planned.cells.values()
    ]
    assert sorted(phases) == [
        [(4, 16), (2, 32)],
        [(4, 32), (2, 64)],
        [(8, 16), (4, 32)],
        [(8, 32), (4, 64)],
    ]
