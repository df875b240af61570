"""stoker track: what it refuses, and what it does with a real run and a real sink."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from made_runs import RunMaker
from stoker.cli import main, track
from stoker.errors import BAD_REQUEST, FINISHED
from stoker.run.directory import Run
from stoker.track.sink import KINDS

HEAVY = ("torch", "cv2", "pyarrow", "PIL", "tensorboard", "mlflow", "wandb")


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunMaker:
    monkeypatch.chdir(tmp_path)
    return RunMaker(tmp_path / "run", steps=200, ranks=2, step_s=0.6).attempt(0, 150, None)


def steps(folder: Path, metric: str = "train/loss") -> list[int]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row["metric"] == metric]


def state(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_mode, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to do"),
        (["--to", "tensorbord"], "did you mean 'tensorboard'?"),
        (["--to", "csv", "--every", "0"], "--every must be at least 0.1"),
        (["--to", "csv", "--patience", "nan"], "--patience must be at least 0"),
        (["--to", "csv", "--out", "run/x"], "is in the run, which is only read"),
        (["--to", "csv", "--out", "run"], "is in the run, which is only read"),
        (["--notify", "'"], "--notify '"),
        (["--notify", " "], "--notify needs a command"),
        (["--to", "csv", "--evry", "1"], "did you mean '--every"),
    ],
)
def test_what_is_refused(
    maker: RunMaker, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["track", "run", *words]) == BAD_REQUEST
    assert message in capsys.readouterr().err


def test_a_package_that_is_missing_is_named(
    maker: RunMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.track.sink.find_spec", lambda name: None)
    for name in ("tensorboard", "mlflow", "wandb"):
        assert main(["track", "run", "--to", name, "--uri", "http://x"]) == BAD_REQUEST
        assert f"pip install {name}" in capsys.readouterr().err


def test_mlflow_needs_a_place(
    maker: RunMaker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.track.sink.find_spec", lambda name: name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main(["track", "run", "--to", "mlflow"]) == BAD_REQUEST
    assert "--uri http://HOST:PORT" in capsys.readouterr().err


def test_every_named_sink_exists() -> None:
    assert {*track.SINKS} == {*KINDS}


def test_a_run_is_copied_over_a_resume(
    maker: RunMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = state(tmp_path / "run")
    assert main(["track", "run", "--to", "csv"]) == FINISHED
    out = tmp_path / "tracked" / "csv" / "run"
    assert steps(out)[-1] == 150
    assert main(["track", "run", "--to", "csv"]) == FINISHED
    assert steps(out) == sorted({*steps(out)})
    assert state(tmp_path / "run") == before
    maker.attempt(100, 200)
    # Of a long output only the beginning is shown, and a machine may have many variables.
    notify = ["--notify", "sh -c 'env | grep STOKER_EVENT'"]
    assert main(["track", "run", "--to", "csv", *notify]) == FINISHED
    assert steps(out) == sorted({*steps(out)})
    assert steps(out)[-1] == 200
    printed = capsys.readouterr().out
    assert "notify: STOKER_EVENT=finished" in printed
    assert "copied" in printed


def test_an_old_run_and_one_without_attempts(tmp_path: Path, maker: RunMaker) -> None:
    RunMaker(tmp_path / "new")
    assert main(["track", "new", "--to", "csv", "--once"]) == FINISHED
    assert steps(tmp_path / "tracked" / "csv" / "new") == []


def test_a_folder_of_another_run(
    maker: RunMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunMaker(tmp_path / "other").attempt(0, 20)
    assert main(["track", "run", "--to", "csv", "--out", "x", "--once"]) == FINISHED
    assert main(["track", "other", "--to", "csv", "--out", "x", "--once"]) == BAD_REQUEST
    assert "holds another run" in capsys.readouterr().err


def test_notifying_needs_no_tracker(
    maker: RunMaker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["track", "run", "--notify", "sh -c 'echo $STOKER_EVENT at $STOKER_STEP'"]) == 0
    assert "notify: killed at 150" in capsys.readouterr().out
    assert not (tmp_path / "tracked").exists()


def test_once_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["track", str(tmp_path / "no"), "--to", "csv", "--once"]) == BAD_REQUEST
    assert "is not a run" in capsys.readouterr().err


def test_a_run_that_may_not_be_written_is_read(maker: RunMaker, tmp_path: Path) -> None:
    folders = [tmp_path / "run", *(p for p in (tmp_path / "run").rglob("*") if p.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        assert main(["track", "run", "--to", "csv", "--once"]) == FINISHED
    finally:
        for folder in folders:
            folder.chmod(0o755)


def test_it_imports_little(maker: RunMaker) -> None:
    source = (
        "import sys; from stoker.cli import main; code = main(sys.argv[1:]); "
        f"print([name for name in {HEAVY} if name in sys.modules]); sys.exit(code)"
    )
    words = [sys.executable, "-c", source, "track", "run", "--to", "csv", "--once"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_same_command_goes_on(
    maker: RunMaker, tmp_path: Path, number: signal.Signals
) -> None:
    trainer = Run(tmp_path / "run")
    trainer.lock()
    words = [sys.executable, "-P", "-m", "stoker", "track", "run", "--to", "csv", "--every", "0.1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as tracker:
        assert tracker.stdout is not None
        assert tracker.stdout.readline().startswith("copies run to CSV")
        os.kill(tracker.pid, number)
        printed = tracker.stdout.read()
        assert tracker.wait(30) == FINISHED
    assert "the same command goes on from there" in printed
    trainer.unlock()
    assert main(["track", "run", "--to", "csv"]) == FINISHED
    out = tmp_path / "tracked" / "csv" / "run"
    assert steps(out) == sorted({*steps(out)})
    assert steps(out)[-1] == 150
