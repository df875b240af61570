"""stoker bench: what each subject prints, and how it refuses what cannot be measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bench_results import result, row, seed_table
from golden import check_golden
from samples import image_folder
from stoker.cli import main
from stoker.data.packing.pack import pack
from stoker.errors import BAD_REQUEST, FINISHED
from stoker.measure.trials.loading import STAGES
from stoker.plan.bench.result import write_result

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
    "train",
    "train here --steps 0",
    "train here --repeats 0",
    "train here --time-limit 0",
    "train here --memory-limit nan",
    "train here --price-per-hour -1",
    "train here --batch-size 16,x",
    "train here --batch-size 2 --ranks 1,4",
    "train here --precision fp32,fp8",
    "train here --model resnet9,resnet9",
    "train here --model resnet51",
    "train here --out no/such/file",
    "table",
    "table nowhere.json",
    "table a.json --html no/such/file",
    "reproduce",
    "reproduce nowhere.json",
    "reproduce a.json --out a.json",
    "cell",
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
        ("train no-such-set", "no-such-set"),
        ("train here --pecision fp32", "'--precision'"),
        ("--help-all", "data, train"),
    ],
)
def test_mistakes_that_others_answer(
    flags: str, fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *flags.split()]) == BAD_REQUEST
    assert fact in capsys.readouterr().err


@pytest.mark.parametrize("subject", ["", "data", "train", "table", "reproduce"])
def test_help_golden(
    subject: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):
        main(["bench", *subject.split(), "--help"])
    name = f"help_bench_{subject}" if subject else "help_bench"
    check_golden(name, capsys.readouterr().out.splitlines())


def test_files_of_several_machines_make_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, one in enumerate(seed_table()):
        write_result(Path(f"{number}.json"), one)
    assert main(["bench", "table", "0.json", "1.json", "--html", "page.html"]) == FINISHED
    printed = capsys.readouterr().out
    assert "p3.8xlarge" in printed and "out of memory" in printed
    assert "<svg" in Path("page.html").read_text()
    assert main(["bench", "table", "0.json", "--csv"]) == FINISHED
    assert capsys.readouterr().out.startswith("machine,model,")
    assert main(["bench", "table", "0.json", "--markdown"]) == FINISHED
    assert "| model |" in capsys.readouterr().out


@pytest.mark.parametrize("change", ["set", "code", "rows"])
def test_another_set_code_and_no_rows_are_not_measured_again(
    packed: Path, tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = row(model="net.py:build") if change == "code" else row()
    whole = result(*([] if change == "rows" else [one]))
    write_result(tmp_path / "a.json", whole)
    words = ["bench", "reproduce", str(tmp_path / "a.json"), "--data", str(packed)]
    assert main(words) == BAD_REQUEST
    fact = {"set": "another set", "code": "--trust-code", "rows": "no rows"}[change]
    assert fact in capsys.readouterr().err
    assert not (tmp_path / "a-again.json").exists()


@pytest.mark.parametrize("subject", ["", "train", "table", "reproduce", "data"])
def test_help_imports_nothing_heavy(subject: str) -> None:
    code = (
        "import sys; from stoker.cli import bench\n"
        f"try: bench.run(['{subject}', '--help'] if '{subject}' else ['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'cv2', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
