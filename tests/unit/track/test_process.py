"""The process of a sink: whatever it does, the follower gets an answer or can end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fake_sinks import DIES, HANGS, PRINTS_NONSENSE, REFUSES, program
from stoker.history.metrics import TRAIN, MetricPoint
from stoker.track.curve import CurvePosition
from stoker.track.process import SinkProcess
from stoker.track.sink import SinkOptions, public_text
from waiting import until

WAIT_S = 30.0
POINTS = [MetricPoint(TRAIN, 1, 0.0, {"train/loss": 0.5})]


def options(folder: Path) -> SinkOptions:
    return SinkOptions(run_id="r", name="run", out=str(folder / "out"))


def started(folder: Path, source: str) -> SinkProcess:
    return SinkProcess("csv", options(folder), program(source))


def test_a_real_sink_answers(tmp_path: Path) -> None:
    process = SinkProcess("csv", options(tmp_path))
    try:
        process.open()
        assert process.answer(WAIT_S) == {"position": {"attempt": 0, "steps": {}}}
        process.write(POINTS, CurvePosition(1, {TRAIN: 1}))
        assert process.answer(WAIT_S) == {"position": {"attempt": 1, "steps": {"train": 1}}}
        process.back(1, 2)
        assert process.answer(WAIT_S) == {"position": {"attempt": 2, "steps": {"train": 0}}}
        process.close("finished")
        assert process.answer(WAIT_S) == {}
    finally:
        process.kill()


def test_a_refusal_says_why(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "metrics.csv").touch()
    process = SinkProcess("csv", options(tmp_path))
    try:
        process.open()
        answer = process.answer(WAIT_S)
        assert answer is not None
        assert answer["is_refusal"]
        assert "name another --out" in answer["error"]
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (DIES, "its process ended with 3: out of luck"),
        (PRINTS_NONSENSE, "an answer that is none"),
        (REFUSES, "the server says no"),
    ],
)
def test_what_goes_wrong_is_an_answer(tmp_path: Path, source: str, error: str) -> None:
    process = started(tmp_path, source)
    try:
        process.open()
        answer = process.answer(WAIT_S)
        assert answer is not None
        assert error in answer["error"]
        assert not process.is_busy
    finally:
        process.kill()


def test_a_sink_that_hangs_can_be_ended(tmp_path: Path) -> None:
    process = started(tmp_path, HANGS)
    process.open()
    assert process.answer(0.0) is None
    assert process.is_busy
    process.kill()
    answer = process.answer(WAIT_S)
    assert answer is not None
    assert "ended with -9" in answer["error"]


def test_a_sink_that_reads_nothing_does_not_block_a_large_message(tmp_path: Path) -> None:
    process = started(tmp_path, "import signal\nsignal.pause()")
    points = [MetricPoint(TRAIN, n, 0.0, {f"train/{'x' * 1000}": 1.0}) for n in range(1000)]
    process.write(points, CurvePosition(1, {TRAIN: 999}))
    assert process.answer(0.0) is None
    process.kill()


FOLLOWER = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from fake_sinks import HANGS, program
from stoker.track.process import SinkProcess
from stoker.track.sink import SinkOptions
process = SinkProcess("csv", SinkOptions(run_id="r", name="n", out=sys.argv[1]))
process.open()
process.answer(60)
print(process._process.pid, flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_it_ends_with_a_follower_that_is_killed(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", FOLLOWER, str(tmp_path / "out"), tests]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as follower:
        assert follower.stdout is not None
        child = int(follower.stdout.readline())
        assert is_alive(child)
        os.kill(follower.pid, signal.SIGKILL)
        until(lambda: not is_alive(child))


def test_what_a_library_prints_does_not_disturb_the_answers(tmp_path: Path) -> None:
    source = """
import sys
from stoker.track import csv_files, process
class Loud(csv_files.CsvFiles):
    def open(self):
        print("a library says hello")
        return super().open()
csv_files.SINK = Loud
process.main()
"""
    process = started(tmp_path, source)
    try:
        process.open()
        assert process.answer(WAIT_S) == {"position": {"attempt": 0, "steps": {}}}
    finally:
        process.kill()


def test_no_secret_is_shown() -> None:
    secrets = {"MLFLOW_TRACKING_TOKEN": "s3cr3t-token", "WANDB_API_KEY": "0123456789", "HOME": "/h"}
    text = "https://user:pass@host/x says s3cr3t-token is not 0123456789 in /h\x1b[2J\nmore"
    shown = public_text(text, secrets)
    assert shown == "https://***@host/x says *** is not *** in /h\\x1b[2J"
    assert json.dumps(public_text("x", {"A_TOKEN": ""})) == '"x"'
