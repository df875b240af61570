"""Real trackers: what TensorBoard, MLflow and W&B themselves say of a run that was killed, resumed
and followed by a tracker that was killed as well.

Each has an environment of its own, made here with pip from trackers-constraints.txt (some minutes),
or kept in a folder between runs of the tests:

    STOKER_TRACKERS=FOLDER pytest tests/integration/test_trackers.py --whole
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stoker
from made_runs import RunMaker
from measured import held, measured
from stoker.run.directory import Run
from stoker.run.events import Events
from waiting import until

HERE = Path(__file__).parent
SOURCE = str(Path(stoker.__file__).parents[1])
STEPS = 400
PACKAGES = {"tensorboard": ["tensorboard"], "mlflow": ["mlflow"], "wandb": ["wandb"]}
KEPT = os.environ.get("STOKER_TRACKERS", "")
Values = dict[str, list[tuple[int, float]]]


def interpreter(name: str, factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with a tracker's package, made where it is not there."""
    folder = (Path(KEPT) if KEPT else factory.getbasetemp()) / name
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        venv.create(folder, with_pip=True, symlinks=True)
        install = ["-m", "pip", "install", "-q", "--disable-pip-version-check"]
        constraints = ["-c", str(HERE / "trackers-constraints.txt")]
        words = [str(python), *install, *constraints, "numpy", "rich", *PACKAGES[name]]
        # The versions of this environment are other ones than those of the tests.
        env = {name: text for name, text in os.environ.items() if name != "PIP_CONSTRAINT"}
        done = subprocess.run(words, capture_output=True, text=True, timeout=540, env=env)
        assert done.returncode == 0, f"pip cannot install {name}: {done.stderr[-2000:]}"
        (folder / "complete").touch()
    return python


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCE, **more}


def track(python: Path, folder: Path, *words: str, code: int = 0) -> str:
    """Follow the run in a folder to its end; what was printed."""
    command = [str(python), "-m", "stoker", "track", "run", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def answer(python: Path, script: str, *words: str) -> Any:
    """What a script of this folder prints as JSON."""
    done = subprocess.run(
        [str(python), str(HERE / script), *words],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def maker_of(folder: Path) -> RunMaker:
    return RunMaker(folder / "run", steps=STEPS, ranks=2, gpus=True, step_s=0.7)


def checkpoint(run: Run, step: int) -> None:
    (run.path / "last").write_text(f"{step:09d}")


def copy_with_kills(
    python: Path, folder: Path, has_values: Callable[[], bool], *words: str
) -> RunMaker:
    """A run of two attempts, the second of which goes back. The tracker is killed in the first one,
    when it `has_values`, and started again, and started once more after the resume."""
    maker = maker_of(folder).attempt(0, 300, None)
    checkpoint(maker.run, 240)
    trainer = Run(maker.run.path)
    trainer.lock()
    command = [str(python), "-m", "stoker", "track", "run", *words, "--every", "0.2"]
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE) as killed:
        until(has_values, within_s=120)
        os.kill(killed.pid, signal.SIGKILL)
    track(python, folder, *words, "--once")
    trainer.unlock()
    maker.attempt(240, STEPS)
    checkpoint(maker.run, STEPS)
    track(python, folder, *words)
    return maker


def check_curve(run: Run, values: Values) -> None:
    """One value a step, steps that increase, and the losses of the attempt that counts."""
    for name, points in values.items():
        steps = [step for step, _ in points]
        assert steps == sorted({*steps}), name
    assert values["train/epoch"][-1][0] == STEPS
    assert len(values["eval/top1"]) == len(range(20, STEPS, 20))
    exact = {event["step"] + 1: event["lr"] for event in run.steps()}
    for step, rate in values["train/lr"]:
        assert rate == pytest.approx(exact[step], rel=1e-5)


@pytest.fixture(scope="module")
def tensorboard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interpreter("tensorboard", tmp_path_factory)


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interpreter("mlflow", tmp_path_factory)


@pytest.fixture(scope="module")
def wandb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interpreter("wandb", tmp_path_factory)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def server(words: list[str], folder: Path, health: str) -> Iterator[None]:
    """A server, from when it answers until it is ended with all its processes."""
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            words, cwd=folder, env=environment(), stdout=log, stderr=log, start_new_session=True
        )
    try:
        until(lambda: process.poll() is not None or is_up(health), within_s=120, every_s=0.2)
        assert process.poll() is None, (folder / "server.log").read_text()
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def is_up(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5):
            return True
    except OSError:
        return False


def served_curves(address: str) -> Values:
    """The scalars as a TensorBoard server gives them to its page."""

    def get(path: str) -> Any:
        with urllib.request.urlopen(f"{address}/data/plugin/scalars/{path}", timeout=20) as page:
            return json.load(page)

    (tags,) = until(lambda: list(get("tags").values()), within_s=60, every_s=0.5)
    points = {tag: get(f"scalars?run=run&tag={tag}") for tag in tags}
    return {tag: [(step, value) for _, step, value in rows] for tag, rows in points.items()}


@pytest.mark.rotates(3)
@pytest.mark.timeout(900)
def test_tensorboard_shows_one_curve(tensorboard: Path, tmp_path: Path) -> None:
    """Both readers: the EventAccumulator, and the data server behind the page."""
    logs = tmp_path / "tracked" / "tensorboard"
    has_values = (logs / "run" / "position.json").exists
    maker = copy_with_kills(tensorboard, tmp_path, has_values, "--to", "tensorboard")
    read = answer(tensorboard, "event_files.py", str(logs / "run"))
    check_curve(maker.run, read["scalars"])
    assert read["tensors"] == ["run/parameters"]
    port = free_port()
    words = [str(tensorboard), "-m", "tensorboard.main", "--logdir", str(logs), "--port", str(port)]
    words += ["--host", "127.0.0.1", "--samples_per_plugin", "scalars=100000"]
    with server(words, tmp_path, f"http://127.0.0.1:{port}/"):
        served = served_curves(f"http://127.0.0.1:{port}")
    assert {*served} == {*read["scalars"]}
    check_curve(maker.run, served)
    assert {k: [s for s, _ in v] for k, v in served.items()} == {
        k: [s for s, _ in v] for k, v in read["scalars"].items()
    }


@pytest.mark.rotates(3)
@pytest.mark.timeout(900)
def test_tensorboard_after_a_kill_between_values_and_position(
    tensorboard: Path, tmp_path: Path
) -> None:
    """What was written and is not on record is written again, and shown once."""
    maker = maker_of(tmp_path).attempt(0, 200, None)
    track(tensorboard, tmp_path, "--to", "tensorboard")
    folder = tmp_path / "tracked" / "tensorboard" / "run"
    before = (folder / "position.json").read_bytes()
    maker.attempt(200, STEPS)
    track(tensorboard, tmp_path, "--to", "tensorboard")
    (folder / "position.json").write_bytes(before)
    track(tensorboard, tmp_path, "--to", "tensorboard")
    check_curve(maker.run, answer(tensorboard, "event_files.py", str(folder))["scalars"])


@pytest.mark.rotates(3)
@pytest.mark.timeout(900)
def test_an_mlflow_server_has_one_curve(mlflow: Path, tmp_path: Path) -> None:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    store = ["--backend-store-uri", f"sqlite:///{tmp_path}/m.db"]
    words = [str(mlflow.parent / "mlflow"), "server", *store, "--port", str(port)]
    place = ("--to", "mlflow", "--uri", address)
    with server([*words, "--host", "127.0.0.1"], tmp_path, f"{address}/health"):
        maker = copy_with_kills(
            mlflow, tmp_path, lambda: bool(answer(mlflow, "mlflow_runs.py", address)), *place
        )
        (run,) = answer(mlflow, "mlflow_runs.py", address)
        check_curve(maker.run, run["values"])
        assert run["status"] == "FINISHED"
        assert run["params"]["model"] == "resnet18"
        assert run["tags"]["dataset"] == "photos"
        maker.attempt(100, 120, "failed")  # further back than any checkpoint that was copied
        assert "cannot take values back" in track(mlflow, tmp_path, *place)
        runs = answer(mlflow, "mlflow_runs.py", address)
        (replaced,) = [run for run in runs if "stoker.replaced" in run["tags"]]
        (newest,) = [run for run in runs if run is not replaced]
        assert (replaced["status"], newest["status"]) == ("KILLED", "FAILED")
        assert newest["values"]["train/epoch"][-1][0] == 120
    told = track(mlflow, tmp_path, *place, "--patience", "3", "--once", code=1)
    assert "MLflow does not take values" in told
    assert "MLflow did not take everything within 3 s" in told


@pytest.mark.rotates(3)
@pytest.mark.timeout(900)
def test_wandb_has_one_curve(wandb: Path, tmp_path: Path) -> None:
    maker = maker_of(tmp_path).attempt(0, 300, None)
    checkpoint(maker.run, 240)
    words = ("--to", "wandb", "--offline")
    track(wandb, tmp_path, *words, "--once")
    maker.attempt(240, STEPS)
    checkpoint(maker.run, STEPS)
    track(wandb, tmp_path, *words)
    read = answer(wandb, "wandb_files.py", str(tmp_path / "tracked" / "wandb" / "run"))
    assert len({*read["ids"]}) == 1
    check_curve(maker.run, read["values"])
    maker.attempt(100, 120, "failed")
    track(wandb, tmp_path, *words)
    read = answer(wandb, "wandb_files.py", str(tmp_path / "tracked" / "wandb" / "run"))
    assert read["ids"][-1] == f"{read['ids'][0]}-2"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_nothing_below_the_run_is_opened_for_writing(tmp_path: Path) -> None:
    maker_of(tmp_path).attempt(0, 100, None).attempt(80, 120)
    log = tmp_path / "calls"
    calls = "open,openat,creat,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,truncate"
    words = [sys.executable, "-m", "stoker", "track", "run", "--to", "csv", "--notify", "true"]
    command = ["strace", "-f", "-qq", "-s", "4096", "-e", f"trace={calls}", "-o", str(log), *words]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True, timeout=120)
    own = [line for line in log.read_text().splitlines() if re.search(r'"(\S*/)?run(/|")', line)]
    below = [line for line in own if "tracked/" not in line]
    assert any("rank0.summary.jsonl" in line for line in below)
    for line in below:
        assert re.search(r"openat?\(", line), line
        assert not re.search(r"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)", line), line


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and of those that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_s(int(child)) for child in children)


@pytest.mark.alone
@measured()
def test_following_takes_less_than_a_hundredth_of_a_core(tmp_path: Path) -> None:
    """A run of 8 ranks that makes 5 steps a second, followed for 35 s after it has caught up."""
    maker = RunMaker(tmp_path / "run", steps=100_000, ranks=8, gpus=True, step_s=0.2)
    run = maker.attempt(0, 300, None).run
    run.attempt_path(2).mkdir()
    files = [Events(run.events_path(2, rank)) for rank in range(8)]
    maker._start(files, 300)
    trainer = Run(run.path)
    trainer.lock()
    words = [sys.executable, "-m", "stoker", "track", "run", "--to", "csv"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment()) as tracker:
        try:
            metrics = tmp_path / "tracked" / "csv" / "run" / "metrics.csv"
            until(lambda: metrics.exists() and metrics.stat().st_size > 1000)
            began, used_s, size = time.monotonic(), cpu_s(tracker.pid), metrics.stat().st_size
            for number in range(175):
                for rank, events in enumerate(files):
                    maker._write_step(events, rank, 300 + number, 0.1, 0.2)
                    events.flush()
                time.sleep(max(began + number / 5 - time.monotonic(), 0))
            took_s, used_s = time.monotonic() - began, cpu_s(tracker.pid) - used_s
        finally:
            tracker.send_signal(signal.SIGTERM)
        assert tracker.wait(30) == 0
    trainer.unlock()
    assert metrics.stat().st_size > size  # it did follow
    share = used_s / took_s
    print(f"{share:.2%} of a core over {took_s:.0f} s")
    held(share < 0.01, share)


def test_the_csv_files_are_what_other_readers_expect(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    maker_of(tmp_path).attempt(0, 100, None).attempt(80, 120)
    track(Path(sys.executable), tmp_path, "--to", "csv")
    file = tmp_path / "tracked" / "csv" / "run" / "metrics.csv"
    table = pandas.read_csv(file, parse_dates=["time"])
    wide = table.pivot(index="step", columns="metric", values="value")  # raises for duplicates
    assert wide.index.max() == 120
    assert {"train/loss", "machine/gpu0_busy"} < {*wide.columns}
    with file.open(newline="") as text:
        assert len(list(csv.reader(text))) == len(table) + 1
