"""`stoker sweep`: mistakes are answered at once, in one line, before anything is trained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from disks import small_file_system
from golden import check_golden
from own_models import NET
from samples import image_folder
from stoker.cli import main
from stoker.cli.sweep import parser, plan
from stoker.data.packing.pack import pack
from stoker.errors import FAILED
from stoker.survive.stopping import StopRequest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a folder of images, a packed set and a recipe."""
    monkeypatch.chdir(tmp_path)
    image_folder(Path("photos"), classes=2, images=4)
    pack(Path("photos"), Path("packed"))
    Path("mine.toml").write_text("epochs = 4\n")
    return tmp_path


MISTAKES = [
    "",
    "packed",
    "packed --set lr",
    "packed --set lr=",
    "packed --set lr=fast",
    "packed --set lr=0.1..1",
    "packed --set seed=4..0",
    "packed --set seed=0..1000000",
    "packed --set rl=0.1",
    "packed --set workers=1,2",
    "packed --set ema=yes",
    "packed --set lr=0.1 --set lr=0.2",
    "packed --set lr=0.1 --lr 0.2",
    "packed --set model=resnet9,resnet5O",
    "packed --set optimizer=sgd,sdg",
    "packed --set batch_size=0,8",
    "packed --set seed=0,1 --trials 4",
    "packed --set lr=0.1,0.2 --trials 4",
    "packed --set lr=0.1..1 --trials 0",
    "packed --set lr=0.1,0.2 --halving 1",
    "packed --set lr=0.1,0.2 --halving 3",
    "packed --set epochs=4,8 --halving 2",
    "packed --set lr=0.1,0.2 --epochs 1 --halving 2",
    "packed --set lr=0.1 --workers 0",
    "packed --set lr=0.1 --compute-threads -1",
    "packed --set lr=0.1 --json nowhere/figures",
    "photos --set lr=0.1 --status",
    "absent --set lr=0.1",
    "packed --set weights=absent",
]


def test_golden_mistakes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in MISTAKES:
        assert main(["sweep", *words.split()]) == 2, words
        printed = capsys.readouterr().err.splitlines()
        assert len(printed) == 1, printed
        texts += [f"$ stoker sweep {words}".rstrip(), *printed]
    check_golden("sweep_mistakes", texts)
    assert not Path("sweeps").exists()


def test_golden_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for verb in ("sweep", "work"):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
    check_golden("help_sweep", capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("words", [["--help"], ["packed"], ["packed", "--set", "rl=0.1"]])
def test_torch_is_not_imported_for_mistakes(place: Path, words: list[str]) -> None:
    code = (
        "import sys\nfrom stoker.cli import main\n"
        f"try:\n    main({['sweep', *words]!r})\nexcept SystemExit:\n    pass\n"
        "sys.exit(3 if {'torch', 'pyarrow'} & {*sys.modules} else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert done.returncode == 0


def test_a_status_trains_and_writes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "packed", "--set", "lr=0.1,0.2", "--status", "--json", "figures"]) == 0
    assert "2 cells: 2 waiting" in capsys.readouterr().out
    assert [cell["state"] for cell in json.loads(Path("figures").read_text())["cells"]] == [
        "waiting",
        "waiting",
    ]
    assert not Path("sweeps").exists()


def test_the_code_of_every_model_is_frozen(place: Path) -> None:
    Path("a.py").write_text(NET)
    Path("b.py").write_text(NET.replace("0.2", "0.3"))
    words = "packed --set model=./a.py:build,./b.py:build --set seed=0..1 --out out"
    planned, inputs = plan(parser().parse(words.split()), StopRequest())
    digest, grid = inputs.freeze(planned.plan), inputs.grid
    codes = {cell.meaning["values"]["model_code"] for cell in planned.plan.cells.values()}
    assert {file.stem for file in (grid.path / "models").iterdir()} == codes
    assert len(codes) == 2
    assert list(grid.plan(digest).cells) == list(planned.plan.cells)


def test_a_recipe_that_is_edited_is_another_sweep(place: Path) -> None:
    words = "packed --recipe mine.toml --set lr=0.1,0.2 --out out"
    first = plan(parser().parse(words.split()), StopRequest())[0]
    same = plan(parser().parse(words.split()), StopRequest())[0]
    Path("mine.toml").write_text("epochs = 5\n")
    other = plan(parser().parse(words.split()), StopRequest())[0]
    assert first.cells.keys() == same.cells.keys()
    assert not first.cells.keys() & other.cells.keys()


@pytest.mark.parametrize("room", ["4k", "200k"])
def test_a_full_disk_is_one_line(
    place: Path, room: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_file_system(place / "small", room):
        words = ["sweep", "packed", "--set", "lr=0.1,0.2", "--out", "small/sweep"]
        assert main(words) == FAILED
    message = capsys.readouterr().err
    assert message.startswith("stoker: cannot write to small/sweep: No space left on device; ")
    assert message.count("\n") == 1
