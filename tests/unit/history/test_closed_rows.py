"""Rows that are given once they are complete: the same ones, however the file grew."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from made_runs import RunMaker
from stoker.history.closed_rows import ClosedRowReader
from stoker.run.events import summary_path
from stoker.run.kinds import Event

STEPS = 120


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    maker = RunMaker(tmp_path_factory.mktemp("rows") / "run", steps=STEPS, step_s=0.7)
    return maker.attempt(0, STEPS).run.events_path(1, 0)


def all_rows(path: Path, cut: int = 1 << 62, *, every_step: bool = False) -> list[Event]:
    return list(ClosedRowReader(path, every_step=every_step).read_closed(cut, is_over=True))


def grown(source: Path, path: Path, sizes: list[int], *, has_summary: bool) -> list[Event]:
    """The rows of a reader that looks after each growth of the files."""
    reader, rows = ClosedRowReader(path), list[Event]()
    data, summary = source.read_bytes(), summary_path(source).read_bytes()
    for size in sizes:
        path.write_bytes(data[:size])
        if has_summary:
            summary_path(path).write_bytes(summary[: len(summary) * size // len(data)])
        rows += reader.read_closed()
    return rows + list(reader.read_closed(is_over=True))


@pytest.mark.parametrize("has_summary", [True, False])
@pytest.mark.parametrize("pieces", [3, 17, 101])
def test_rows_do_not_depend_on_when_they_are_read(
    events: Path, tmp_path: Path, pieces: int, has_summary: bool
) -> None:
    size = events.stat().st_size
    sizes = [size * number // pieces for number in range(1, pieces + 1)]
    rows = grown(events, tmp_path / "rank0.jsonl", sizes, has_summary=has_summary)
    assert rows == all_rows(events)
    assert sum(row["count"] for row in rows if row["kind"] == "steps") == STEPS


def test_the_summary_says_the_same_as_the_events(events: Path, tmp_path: Path) -> None:
    (tmp_path / "rank0.jsonl").write_bytes(events.read_bytes())
    assert all_rows(tmp_path / "rank0.jsonl") == all_rows(events)


def test_an_open_row_waits_until_the_attempt_is_over(events: Path, tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(b"".join(events.read_bytes().splitlines(keepends=True)[:6]))
    reader = ClosedRowReader(path)
    before = [row["last"] for row in reader.read_closed() if row["kind"] == "steps"]
    after = [row["last"] for row in reader.read_closed(is_over=True) if row["kind"] == "steps"]
    assert before == [0, 1, 2]
    assert after == [4]


def test_every_step_has_a_row(events: Path) -> None:
    rows = [row for row in all_rows(events, every_step=True) if row["kind"] == "steps"]
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert {row["count"] for row in rows} == {1}


def test_no_row_crosses_the_cut(events: Path) -> None:
    rows = [row for row in all_rows(events, 50 * 256) if row["kind"] == "steps"]
    assert [row["step"] for row in rows if row["step"] <= 50 <= row["last"]] == [50]


def test_a_damaged_summary_is_not_used_further(events: Path, tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(events.read_bytes())
    lines = summary_path(events).read_bytes().splitlines(keepends=True)
    summary_path(path).write_bytes(b"".join([*lines[:5], b"{}\n", *lines[6:]]))
    rows = [row for row in all_rows(path) if row["kind"] == "steps"]
    assert sum(row["count"] for row in rows) == STEPS


def test_a_summary_that_is_ahead_of_the_events_is_read_later(events: Path, tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    path.write_bytes(events.read_bytes()[:2000])
    summary_path(path).write_bytes(summary_path(events).read_bytes())
    reader = ClosedRowReader(path)
    rows = list(reader.read_closed())
    path.write_bytes(events.read_bytes())
    assert rows + list(reader.read_closed(is_over=True)) == all_rows(events)


def test_neither_a_pipe_nor_a_missing_file_makes_it_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.jsonl")
    assert all_rows(tmp_path / "rank0.jsonl") == []
    assert all_rows(tmp_path / "rank1.jsonl") == []
