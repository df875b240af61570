"""stoker predict: its flags, its exit codes, and that data alone is on standard output."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from golden import check_golden
from stoker.cli import main
from stoker.cli.predict import FEATURE_SUFFIXES, FORMATS, format_of, parser
from stoker.recipe.resolve import resolve
from stoker.train.attempt.session import train
from stoker.use.features import FEATURE_FILES
from stoker.use.rows import ROW_FORMATS
from tiny_runs import FLAGS, one_thread_alone, tiny_set

__all__ = ["one_thread_alone"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, the set it was trained on, the photographs of the set, and a broken one."""
    root = tmp_path_factory.mktemp("predict")
    data = tiny_set(root)
    assert train(data, resolve(None, FLAGS | {"epochs": 1}), root / "run") == "finished"
    (root / "bad.jpg").write_text("no image")
    (root / "empty").mkdir()
    return root


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_rows_go_to_standard_output_and_the_rest_to_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["predict", "run", "photos/val", "bad.jpg", "--top", "2"]) == 0
    printed = capsys.readouterr()
    rows = rows_of(printed.out)
    assert len(rows) == 16
    assert set(rows[0]) == {
        "path",
        "class",
        "probability",
        "class_2",
        "probability_2",
        "error",
    }
    assert [row["path"] for row in rows if row["error"]] == ["bad.jpg"]
    assert printed.err.startswith("16 images by run, checkpoint ")


def test_files_instead(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out, features = tmp_path / "o.jsonl", tmp_path / "f.npy"
    words = ["run", "packed", "--split", "val", "--out", str(out), "--features", str(features)]
    assert main(["predict", *words]) == 0
    assert capsys.readouterr().out == ""
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(rows) == len(np.load(features)) == 15
    assert len(rows[0]["top"]) == 3
    assert main(["predict", *words[:-1], str(tmp_path / "f.parquet"), "--format", "csv"]) == 0
    table = pq.read_table(tmp_path / "f.parquet")
    assert table.column("path").to_pylist() == [row["path"] for row in rows]
    assert [row["path"] for row in rows_of(out.read_text())] == [row["path"] for row in rows]


@pytest.mark.parametrize(
    ("words", "code", "rows"),
    [
        (["bad.jpg"], 1, 1),
        (["bad.jpg", "photos/val"], 0, 16),
        (["empty"], 2, 0),
        (["photos/*/class0/*.png", "--batch-size", "2", "--threads", "1"], 0, 25),
        (["packed"], 0, 75),
        (["packed", "photos/val", "packed"], 0, 165),
    ],
)
def test_exit_codes(
    words: list[str], code: int, rows: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["predict", "run", *words]) == code
    assert len(rows_of(capsys.readouterr().out)) == rows
    out = tmp_path / "rows.csv"
    assert main(["predict", "run", *words, "--out", str(out)]) == code
    assert out.exists() == (rows > 0)


def test_a_full_disk_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "run", "packed", "--out", "/dev/full"]) == 1
    assert capsys.readouterr().err == (
        "stoker: cannot write to /dev/full: No space left on device\n"
    )


def test_names_of_any_bytes_come_back(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> None:
    image = Path("photos/val/class0/0020.png").read_bytes()
    names = [b"\xff\xfe.png", b"a\nb.png", b'"quote",.png', b"\x1b[2J.png", b"-.png", b"=1.png"]
    for name in names:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(image)
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\x1b[2Jbad.png")).write_bytes(b"")
    assert main(["predict", "run", str(tmp_path)]) == 0
    printed = capfdbinary.readouterr()
    text = printed.out.decode("utf-8", "surrogateescape")
    rows = list(csv.reader(io.StringIO(text, newline="")))[1:]
    folder = os.fsencode(tmp_path) + b"/"
    assert [os.fsencode(row[0]) for row in rows] == sorted(
        folder + name for name in [*names, b"\x1b[2Jbad.png"]
    )
    assert len({row[2] for row in rows}) == 2
    assert b"\x1b" not in printed.err


MISTAKES: list[list[str]] = [
    ["run"],
    ["nowhere", "bad.jpg"],
    ["empty", "bad.jpg"],
    ["run", "nowhere.jpg"],
    ["run", "nowhere*.jpg"],
    ["run", "empty"],
    ["run", "bad.jpg", "--top", "0"],
    ["run", "bad.jpg", "--threads", "-1"],
    ["run", "bad.jpg", "--format", "xml"],
    ["run", "bad.jpg", "--features", "f.txt"],
    ["run", "bad.jpg", "--features", "f.npy", "--out", "f.npy"],
    ["run", "bad.jpg", "--out", "empty"],
    ["run", "bad.jpg", "--out", "nowhere/o.csv"],
    ["run", "bad.jpg", "--checkpoint", "../x"],
    ["run", "bad.jpg", "--split", "val"],
    ["run", "packed", "--split", "test"],
    ["run", "bad.jpg", "--null"],
    ["run", "-", "-"],
]


def test_help_and_mistakes_golden(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = []
    for words in MISTAKES:
        assert main(["predict", *words]) == 2, words
        printed = capsys.readouterr()
        assert printed.out == ""
        lines += [f"$ stoker predict {' '.join(words)}", printed.err.rstrip("\n")]
    monkeypatch.setenv("COLUMNS", "80")
    check_golden("predict_verb", [*parser().format_help().splitlines(), *lines])


@pytest.mark.parametrize(
    ("out", "format"),
    [("", "csv"), ("a.jsonl", "jsonl"), ("a.JSONL", "jsonl"), ("a.txt", "csv"), ("csv", "csv")],
)
def test_the_name_of_the_file_says_its_format(out: str, format: str) -> None:
    assert format_of(out) == format


def test_the_flags_know_what_can_be_written() -> None:
    assert tuple(ROW_FORMATS) == FORMATS
    assert tuple(FEATURE_FILES) == FEATURE_SUFFIXES


def test_wrong_words_do_not_wait_for_torch() -> None:
    code = (
        "import sys; from stoker.cli import main\n"
        "assert main(['predict', 'run', 'nowhere.jpg']) == 2\n"
        "assert main(['predict', 'run', 'bad.jpg', '--top', 'x']) == 2\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_nothing_is_piped_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def __getattr__(self, name: str) -> Any:
            return getattr(sys.__stdin__, name)

    monkeypatch.setattr("sys.stdin", Terminal())
    assert main(["predict", "run", "-"]) == 2
    assert "nothing is piped in" in capsys.readouterr().err
