"""stoker predict as a process: stopped, killed, cut off, and with endless input."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import pytest

from bounded import stoker
from measured import held, measured
from pages import ROOT
from samples import image_folder
from stoker.data.images.encode import Storage
from stoker.data.packing.pack import pack
from waiting import until

FLAGS = (
    "--model resnet9_w2 --image-size 8 --batch-size 20 --epochs 1 --crop pad --eval-batch-size 8"
)
LEAST_RATIO = 0.75
"""Of evaluation's images a second; the goal on quiet cores is 0.9 (docs/results/predict.md)."""
MORE_MIB = 60
"""Memory that a hundred times as many paths may take: allocators keep what was freed."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs, their packed set and a run."""
    root = tmp_path_factory.mktemp("predict")
    photos = image_folder(root / "photos", classes=2, images=20, val=4, size=(8, 8), suffix="png")
    pack(photos, root / "packed", storage=Storage(codec="raw"), workers=1)
    assert stoker("train", "packed", "--run", "run", *FLAGS.split(), cwd=root).code == 0
    return root


def started(place: Path, *words: str) -> subprocess.Popen[bytes]:
    """A prediction that waits for more paths after the first few batches."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stoker", "predict", "run", "-", *words],
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    feed(process, 200)
    return process


def feed(process: subprocess.Popen[bytes], count: int) -> None:
    pipe: IO[bytes] = process.stdin  # type: ignore[assignment]
    pipe.write(b"photos/val/class0/0020.png\n" * count)
    pipe.flush()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_prediction_leaves_nothing(place: Path, number: signal.Signals) -> None:
    process = started(place, "--out", "rows.csv", "--features", "f.parquet")
    until(lambda: list(place.glob(".f.parquet.*.tmp")))
    process.send_signal(number)
    # Its input stays open until it has ended: a prediction that is done then is no stopped one.
    assert process.wait(60) == 75
    _, err = process.communicate()
    assert err.decode().splitlines() == [
        f"stoker: predicting stopped ({number.name}); nothing was changed: the same command "
        "starts again"
    ]
    assert not list(place.glob("*rows.csv*"))
    assert not list(place.glob("*f.parquet*"))


def test_a_killed_prediction_leaves_no_rows_that_look_whole(place: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("before")
    process = started(place, "--out", str(tmp_path / "rows.csv"))
    until(lambda: list(tmp_path.glob(".rows.csv.*.tmp")))
    process.kill()
    process.communicate(timeout=60)
    assert (tmp_path / "rows.csv").read_text() == "before"


def test_rows_come_early_and_a_reader_that_has_enough_ends_it_quietly(place: Path) -> None:
    process = started(place)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"path,class,")
    assert process.stdout.readline().startswith(b"photos/val/class0/0020.png,class")
    process.stdout.close()
    assert process.stderr is not None
    try:
        while process.poll() is None:
            feed(process, 1000)
    except BrokenPipeError:
        pass
    assert (process.wait(60), process.stderr.read()) == (0, b"")


@pytest.mark.parametrize(("streams", "code"), [(">/dev/full", 1), ("--out /dev/stdout", 0)])
def test_a_full_disk(place: Path, streams: str, code: int) -> None:
    command = f"{sys.executable} -m stoker predict run packed {streams}"
    done = subprocess.run(["bash", "-c", command], cwd=place, capture_output=True, text=True)
    assert done.returncode == code
    assert ("No space left on device" in done.stderr) == (code == 1)
    assert done.stderr.count("\n") == 1
    assert done.stdout.count("\n") == (49 if code == 0 else 0)


@pytest.mark.rotates(2)
@pytest.mark.alone
@measured()
def test_prediction_is_as_fast_as_evaluation(tmp_path: Path) -> None:
    image_folder(tmp_path / "photos", classes=1, images=300, size=(96, 80))
    words = ["photos", "--model", "resnet9_w2", "--image-size", "32", "--epochs", "1"]
    subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "predictions.py"), *words, "--json", "f.json"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    figures = json.loads((tmp_path / "f.json").read_text())
    assert figures["answers"]["files"]["other_answers"] == 0
    assert figures["answers"]["files"]["largest_difference"] < 1e-6
    ratios = figures["ratios"]
    held(max(map(statistics.median, ratios.values())) > LEAST_RATIO, ratios)


@pytest.mark.rotates(2)
@pytest.mark.alone
@measured()
def test_a_hundred_thousand_paths_take_no_more_memory(place: Path) -> None:
    peaks = []
    for count in (1_000, 100_000):
        with tempfile.TemporaryFile() as listed:
            for number in range(count):
                missing = b"photos/no/such/folder/%09d.png\n" % number
                listed.write(missing if number % 50 else b"photos/val/class0/0020.png\n")
            listed.seek(0)
            words = ["predict", "run", "-", "--out", "rows.csv", "--batch-size", "250"]
            done = stoker(*words, cwd=place, stdin=listed)
        assert done.code == 0
        with (place / "rows.csv").open() as rows:
            assert sum(1 for _ in rows) == count + 1
        peaks.append(done.peak_mib)
    held(peaks[1] < peaks[0] + MORE_MIB, peaks)
