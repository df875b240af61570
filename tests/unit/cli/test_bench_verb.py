"""stoker bench data: a table of stages, what limits the loader, figures as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from golden import check_golden
from samples import image_folder
from stoker.cli import main
from stoker.data.packing.pack import pack
from stoker.errors import BAD_REQUEST, FINISHED
from stoker.measure.trials.loading import STAGES

ROW = re.compile(r"(.+?)  +([\d,]+) +([\d,]+) +([\d,]+|-) +(\d+%|-)")
QUICK = ["--image-size", "16", "--batch-size", "8", "--seconds", "60"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("set")
    folder = image_folder(root / "photos", classes=2, images=10, val=3)
    return pack(folder, root / "packed", workers=1, shard_images=8)


@pytest.mark.parametrize("crop", ["resized", "centre", "pad"])
def test_a_table_of_stages_and_what_limits_the_loader(
    packed: Path, tmp_path: Path, crop: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    words = ["bench", "data", str(packed), *QUICK, "--crop", crop, "--json", str(file)]
    assert main(words) == FINISHED
    head, *rows, about, gap, limit, first = capsys.readouterr().out.splitlines()
    assert head.split() == ["images/s", "images/CPU-s", "MB/s", "cached", "before"]
    assert len(rows) == len(STAGES) and gap == ""
    assert all(ROW.fullmatch(row) for row in rows), rows
    assert len({len(row) for row in [head, *rows]}) == 1
    assert f"16 px, batches of 8, {crop} crops" in about
    assert "loader" in limit
    assert "epoch" in first
    figures = json.loads(file.read_text())
    assert set(figures["stages"]) == set(STAGES)
    assert figures["stages"]["loader warm"]["images"] == 20
    assert set(figures["bound_by"]) == {"cold", "warm"}


MISTAKES = (
    "models",
    "data",
    "data here --seconds 0",
    "data here --seconds nan",
    "data here --batch-size 0",
    "data here --threads -1",
    "data here --json no/such/file",
)


def test_mistakes_golden(capsys: pytest.CaptureFixture[str]) -> None:
    """Each mistake exits with BAD_REQUEST and one line."""
    lines = []
    for flags in MISTAKES:
        assert main(["bench", *flags.split()]) == BAD_REQUEST
        lines += [f"$ stoker bench {flags}", capsys.readouterr().err.rstrip("\n")]
    check_golden("bench_mistakes", lines)


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        ("", "data"),
        ("data here --crop round", "'round'"),
        ("data no-such-set", "no-such-set"),
        ("data here --second 1", "'--seconds'"),
    ],
)
def test_mistakes_that_others_answer(
    flags: str, fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *flags.split()]) == BAD_REQUEST
    assert fact in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from stoker.cli import bench\n"
        "try: bench.run(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'cv2', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
