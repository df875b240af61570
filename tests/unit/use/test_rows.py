"""Rows hold names and answers as they are; files appear whole or not at all."""

from __future__ import annotations

import csv
import errno
import gc
import io
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import StokerError
from stoker.survive.stopping import StopNow
from stoker.use.features import FEATURE_FILES
from stoker.use.predict import NamedAnswers
from stoker.use.rows import ROW_FORMATS, FeatureWriter, RowWriter, complete_file, row_file

CLASSES = ["cat", 'say "cheese", please', "=cmd()|'/c calc'!A0", "Straße\n2"]
NAMES = [
    "plain.jpg",
    "comma, quote\" and 'space.jpg",
    "line\nbreak\r.jpg",
    "=1+1.jpg",
    "\x1b[31mred\x07.jpg",
    os.fsdecode(b"latin-\xe9.jpg"),
    "schön 图片.jpg",
    "",
]


def answers(names: list[str], errors: dict[int, str] | None = None, top: int = 2) -> NamedAnswers:
    order = np.array([[(row + rank) % 4 for rank in range(top)] for row in range(len(names))])
    probabilities = np.linspace(0.9, 0.001, top * len(names), dtype=np.float32)
    reasons = [(errors or {}).get(row) for row in range(len(names))]
    return NamedAnswers(names, reasons, order, probabilities.reshape(len(names), top))


def written(format: str, *parts: NamedAnswers, top: int = 2, terminal: bool = False) -> bytes:
    class File(io.BytesIO):
        def isatty(self) -> bool:
            return terminal

    file = File()
    writer = RowWriter(file, "", format, CLASSES, top)
    for part in parts:
        writer.write(part)
    return file.getvalue()


def test_a_reader_of_csv_gets_every_name_back() -> None:
    """A quote stands before what a spreadsheet would take for a formula."""
    data = written("csv", answers(NAMES[:4]), answers(NAMES[4:], {1: "damaged: too, short"}))
    text = data.decode("utf-8", "surrogateescape")
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    assert header == ["path", "class", "probability", "class_2", "probability_2", "error"]
    assert [row[0] for row in rows] == [*NAMES[:3], f"'{NAMES[3]}", *NAMES[4:]]
    assert rows[5][1:] == ["", "", "", "", "damaged: too, short"]
    assert [row[1] for row in rows[:4]] == [*CLASSES[:2], f"'{CLASSES[2]}", CLASSES[3]]
    assert all(row[-1] == "" for number, row in enumerate(rows) if number != 5)
    assert np.float32(rows[0][2]) == answers(NAMES[:4]).probabilities[0, 0]


def test_a_reader_of_json_gets_every_name_back() -> None:
    data = written("jsonl", answers(NAMES, {2: "empty file"}))
    assert data.isascii()
    rows = [json.loads(line) for line in data.splitlines()]
    assert [row["path"] for row in rows] == NAMES
    assert os.fsencode(rows[5]["path"]) == b"latin-\xe9.jpg"
    assert rows[2] == {"path": NAMES[2], "error": "empty file"}
    assert rows[0] == {"class": "cat", "probability": 0.9, "path": NAMES[0], "top": rows[0]["top"]}
    assert [entry["class"] for entry in rows[3]["top"]] == [CLASSES[3], CLASSES[0]]


@pytest.mark.parametrize("format", ROW_FORMATS)
def test_a_terminal_gets_no_control_characters(format: str) -> None:
    data = written(format, answers(NAMES), terminal=True)
    text = data.decode()
    assert len(text.splitlines()) == len(NAMES) + (format == "csv")
    assert all(line.isprintable() for line in text.splitlines())


def test_a_surrogate_of_no_file_name_is_escaped() -> None:
    assert b"\\ud800.jpg" in written("csv", answers(["\ud800.jpg"]))


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("before")
    for error in (StokerError("x"), StopNow(), KeyError()):
        with pytest.raises(type(error)), complete_file(path) as file:
            file.write(b"half")
            raise error
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]
    assert path.read_text() == "before"
    with complete_file(path) as file:
        file.write(b"whole")
        assert path.read_text() == "before"
    assert path.read_text() == "whole"
    assert [p.name for p in tmp_path.iterdir()] == ["rows.csv"]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "rows.csv").write_text("before")
    (tmp_path / "rows.csv").symlink_to("real/rows.csv")
    with complete_file(tmp_path / "rows.csv") as file:
        file.write(b"after")
    assert (tmp_path / "rows.csv").is_symlink()
    assert (tmp_path / "real" / "rows.csv").read_text() == "after"


def test_a_device_is_written_to() -> None:
    with row_file("/dev/null") as file:
        file.write(b"rows")
    assert Path("/dev/null").is_char_device()


class Failing(io.BytesIO):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.error = OSError(number, os.strerror(number))

    def write(self, data: Any) -> int:
        raise self.error


@pytest.mark.parametrize(("name", "said"), [("", "to standard output: "), ("o.csv", "to o.csv: ")])
def test_a_full_disk_is_said(name: str, said: str) -> None:
    writer = RowWriter(Failing(errno.ENOSPC), name, "csv", CLASSES, 2)
    with pytest.raises(StokerError, match=f"cannot write {said}No space left"):
        writer.write(answers(NAMES))


def test_a_reader_that_is_gone_is_no_error_of_ours() -> None:
    writer = RowWriter(Failing(errno.EPIPE), "", "csv", CLASSES, 2)
    with pytest.raises(BrokenPipeError):
        writer.write(answers(NAMES))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_features_of_a_full_disk_are_said_once(suffix: str) -> None:
    vectors = np.ones((2, 3), np.float32)
    some = NamedAnswers(
        NAMES[:2], [None, "bad"], np.zeros((2, 1), np.int64), vectors[:, :1], vectors
    )
    file = FEATURE_FILES[suffix](Failing(errno.ENOSPC))
    with pytest.raises(StokerError, match="cannot write to f: No space left"):
        FeatureWriter("f", file).write(some)
    with suppress(OSError):
        file.close()
    del file
    gc.collect()


@pytest.mark.parametrize("suffix", [".npy", ".parquet"])
def test_features_are_complete_or_absent(tmp_path: Path, suffix: str) -> None:
    path, vectors = tmp_path / f"f{suffix}", np.ones((2, 3), np.float32)
    some = NamedAnswers(
        NAMES[:2], [None, "bad"], np.zeros((2, 1), np.int64), vectors[:, :1], vectors
    )
    with pytest.raises(StopNow), FeatureWriter.open(str(path)) as writer:
        writer.write(some)
        raise StopNow
    assert not list(tmp_path.iterdir())
    with FeatureWriter.open(str(path)) as writer:
        writer.write(some)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
