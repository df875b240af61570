"""`stoker evaluate` in one process: what it prints and writes, and what it refuses."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

from golden import check_golden
from samples import picture
from stoker.cli import main
from stoker.data.dataset import Dataset
from stoker.recipe.resolve import resolve
from stoker.run.directory import Run
from stoker.train.attempt.session import train
from stoker.train.process_group import Ranks
from tiny_runs import FLAGS, one_thread_alone, tiny_set

__all__ = ["one_thread_alone"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two epochs, and its set beside it."""
    root = tmp_path_factory.mktemp("verb")
    data = tiny_set(root)
    assert train(data, resolve(None, FLAGS | {"epochs": 2}), root / "run") == "finished"
    return root


@pytest.fixture(autouse=True)
def here(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the run, in the working directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(root / "run", "run")
    return tmp_path


def figures(*words: str) -> dict[str, object]:
    assert main(["evaluate", "run", "--threads", "1", *words, "--json", "out.json"]) == 0
    made: dict[str, object] = json.loads(Path("out.json").read_text())
    return made


@pytest.mark.exact
def test_equals_the_runs_own_evaluation() -> None:
    event = Run("run").merged("evaluation")[-1]
    made = figures("--checkpoint", "last")
    assert [made[key] for key in ("top1", "top5", "loss", "images", "step")] == [
        event[key] for key in ("top1", "top5", "loss", "images", "step")
    ]
    kept = json.loads(Path("run/evaluation.json").read_text())
    assert made["per_class"] == kept["per_class"]
    assert made["ece"] == kept["ece"]


def test_prints_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "run"]) == 0
    printed = capsys.readouterr().out
    for text in ("top-1", "macro accuracy", "calibration error", "images/s", "class0"):
        assert text in printed


def test_nothing_but_data_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "run", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 15
    assert main(["evaluate", "run", "--csv", "-"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["images"] for row in rows] == ["5", "5", "5"]


def test_the_worst_are_listed_or_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    made = figures("--worst", "4", "--csv", "all.csv")
    assert len(made["worst"]) == 4  # type: ignore[arg-type]
    assert capsys.readouterr().out.count("val/class") == 4
    assert len(Path("all.csv").read_text().splitlines()) == 4
    assert main(["evaluate", "run", "--sheet", "worst.png"]) == 0
    printed = capsys.readouterr().out
    assert "val/class" not in printed
    assert "worst.png" in printed
    assert Image.open("worst.png").format == "PNG"


def test_a_folder_of_one_class_is_packed_and_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    Path("new/class1").mkdir(parents=True)
    for number in range(3):
        picture(1, number, (8, 8)).save(f"new/class1/{number}.png")
    Path("new/class1/broken.png").write_bytes(b"nothing")
    assert figures("new")["images"] == 3
    out = capsys.readouterr().out
    assert "packing new into new-evaluation" in out
    assert "rejected  1 image" in out
    assert figures("new")["images"] == 3
    assert "is packed already" in capsys.readouterr().out


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> str:
    """The best checkpoint is replaced by this one while it is read."""
    from stoker.use import classifier

    best = Path("run/best").read_text().strip()
    newer = next(p.name for p in Path("run/checkpoints").iterdir() if p.name != best)
    read = classifier.read_weights

    def replaced(folder: Path) -> object:
        if folder.name == best:
            Path("run/best").write_text(newer)
            shutil.rmtree(folder)
        return read(folder)

    monkeypatch.setattr(classifier, "read_weights", replaced)
    return newer


def test_a_running_run_gets_its_newer_best(newer: str) -> None:
    assert figures()["step"] == int(newer)


@pytest.mark.parametrize("verb", ["predict", "export"])
def test_so_do_the_other_verbs(
    root: Path, newer: str, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"predict": [str(root / "photos" / "val")], "export": ["out"]}[verb]
    assert main([verb, "run", *words]) == 0
    assert f"run, checkpoint {newer}" in "".join(capsys.readouterr())


def test_ranks_with_different_checkpoints_do_not_mix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Ranks, "largest", lambda ranks, numbers: [numbers[0] + 1, numbers[1]])
    assert main(["evaluate", "run", "--json", "out.json"]) == 1
    assert "give the same command again" in capsys.readouterr().err
    assert not Path("out.json").exists()


def test_another_set_in_the_place_of_the_own_one_is_noted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from samples import image_folder
    from stoker.data.packing.pack import pack

    photos = image_folder(Path("other"), images=2, size=(8, 8), suffix="png")
    pack(photos, "set", val_share=0, workers=1)
    record = json.loads(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps(record | {"data": str(Path("set").resolve())}))
    assert figures()["images"] == 6
    assert "holds other images than those that the run was trained on" in capsys.readouterr().out


MISTAKES = {
    "no run": ["nowhere"],
    "a folder that is no run": ["."],
    "no data": ["run", "nowhere"],
    "a split that is not there": ["run", "SET", "--split", "vall"],
    "a checkpoint that is not there": ["run", "SET", "--checkpoint", "000000999"],
    "another mirror": ["run", "SET", "--tta", "vflip"],
    "no ranks": ["run", "SET", "--ranks", "0"],
    "threads below 0": ["run", "SET", "--threads", "-1"],
    "a batch of text": ["run", "SET", "--batch-size", "many"],
    "too many of the worst": ["run", "SET", "--worst", "3000"],
    "both to standard output": ["run", "SET", "--json", "-", "--csv", "-"],
    "a sheet to standard output": ["run", "SET", "--sheet", "-"],
    "a sheet in no folder": ["run", "SET", "--sheet", "none/worst.png"],
    "a table that is a folder": ["run", "SET", "--csv", "run"],
    "a flag of train": ["run", "SET", "--epochs", "3"],
    "an empty folder": ["run", "empty"],
    "a broken archive": ["run", "broken.tar"],
    "a run without checkpoints": ["bare", "SET"],
    "a damaged run": ["damaged", "SET"],
    "a damaged checkpoint": ["torn", "SET"],
    "its set is gone": ["moved"],
}


def test_mistakes_golden(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    Path("broken.tar").write_bytes(b"nothing")
    for name in ("bare", "damaged", "torn", "moved"):
        shutil.copytree("run", name)
    shutil.rmtree("bare/checkpoints")
    Path("damaged/run.json").write_text("{")
    for file in Path("torn/checkpoints").glob("*/weights.safetensors"):
        file.write_bytes(b"x" * file.stat().st_size)
    record = json.loads(Path("moved/run.json").read_text())
    Path("moved/run.json").write_text(json.dumps(record | {"data": "/sets/gone"}))
    lines = []
    for name, words in MISTAKES.items():
        words = [str(root / "packed") if word == "SET" else word for word in words]
        code = main(["evaluate", *words])
        error = capsys.readouterr().err.strip().replace(str(root), "ROOT")
        best = Path("torn/best").read_text().strip()
        lines.append(f"{name}: {code} {error.replace(best, 'BEST')}")
        assert code in (1, 2)
        assert "\n" not in error
    check_golden("cli_evaluate", lines)


def test_help_needs_no_torch() -> None:
    import subprocess

    script = (
        "import sys; from stoker.cli import main\n"
        "try: main(['evaluate', '--help'])\nexcept SystemExit: pass\n"
        "main(['evaluate', 'nowhere']); main(['evaluate', 'run', 'nowhere'])\n"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_output_that_cannot_be_written_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stoker.cli import streams

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(streams, "write_bytes", full)
    assert main(["evaluate", "run", "--json", "x.json"]) == 1
    assert "cannot write --json x.json: No space left on device" in capsys.readouterr().err
    assert not Path("x.json").exists()


def test_a_hostile_kept_evaluation_does_not_matter() -> None:
    Path("run/evaluation.json").write_text("[" * 10_000)
    assert figures()["images"] == 15


def test_the_set_of_the_run_is_left_as_it_is(root: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in (root / "packed").rglob("*")}
    figures("--worst", "3")
    assert {p: p.stat().st_mtime_ns for p in (root / "packed").rglob("*")} == before
    assert Dataset(root / "packed").images("val") == 15
