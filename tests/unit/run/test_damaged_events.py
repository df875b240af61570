"""Damage in files of events is passed over with one note: nobody who reads a run fails for it."""

from __future__ import annotations

import os
import shutil
import tracemalloc
from pathlib import Path

import pytest

from compat.kept import FORMAT_1
from damaged_events import DAMAGED_LINES, FLIPS, HARMLESS_LINES, be_folder, flip, insert
from golden import check_golden
from stoker.measure.facts_from_events import AttemptSums
from stoker.measure.verdict import verdict_of
from stoker.run.directory import Run
from stoker.run.events import LONGEST_LINE, read_events
from stoker.show.explain import explain
from stoker.train.attempt.announce import lost_ranks, split_note
from stoker.train.attempt.lost_peers import lost_ranks_message, stopped_ranks
from stoker.train.records.verdicts import newest

RUNS = ("finished-jpeg", "interrupted-jpeg-2")


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return Run(shutil.copytree(FORMAT_1 / request.param, tmp_path / "run"))


def read_as_everybody_does(run: Run) -> list[str]:
    """What `explain` prints, after everything that a resume reads."""
    run = Run(run.path)
    (run.finished, run.steps(), split_note(run, "x"), lost_ranks(run), run.steps_made)
    (stopped_ranks(run, 1), lost_ranks_message(run, 1))
    sums = AttemptSums()
    for rank in run.ranks(1):
        for event in newest(run.events_path(1, rank)):
            sums.add(rank, event)
    verdict_of(sums.facts())
    lines = explain(Run(run.path))
    assert len(lines) <= 25
    assert sum(line.startswith("note: ") for line in lines) <= 1
    return lines


@pytest.mark.parametrize("name", DAMAGED_LINES)
def test_a_damaged_line_is_one_note_and_changes_nothing_else(run: Run, name: str) -> None:
    path = run.events_path(1, 0)
    before = read_as_everybody_does(run)
    path.write_bytes(insert(DAMAGED_LINES[name])(path.read_bytes()))
    *after, note = read_as_everybody_does(run)
    assert after == before
    assert note.startswith("note: 1 damaged line passed over in attempts/0001/rank0.jsonl")


@pytest.mark.parametrize("name", HARMLESS_LINES)
def test_what_a_newer_version_or_a_diverged_run_writes_is_no_damage(run: Run, name: str) -> None:
    path = run.events_path(1, 0)
    path.write_bytes(insert(HARMLESS_LINES[name])(path.read_bytes()))
    lines = read_as_everybody_does(run)
    assert not any(line.startswith("note: ") for line in lines)
    assert {event["attempt"] for event in run.events()} == {1}


def test_one_changed_byte_never_stops_a_reader(run: Run) -> None:
    for rank in run.ranks(1):
        lines = run.events_path(1, rank).read_bytes().splitlines(keepends=True)
        run.events_path(1, rank).write_bytes(b"".join(lines[:8] + lines[-6:]))
    path = run.events_path(1, run.ranks(1)[-1])
    whole = path.read_bytes()
    for number in FLIPS[len(run.ranks(1)) - 1 :: 2]:
        path.write_bytes(flip(whole, number))
        read_as_everybody_does(run)


def test_a_file_cut_at_any_place_is_read(run: Run) -> None:
    path = run.events_path(1, 0)
    whole = path.read_bytes()
    for length in range(0, len(whole), len(whole) // 60):
        path.write_bytes(whole[:length])
        assert not any(line.startswith("note: ") for line in read_as_everybody_does(run))


def test_a_damaged_beginning_keeps_the_steps(run: Run) -> None:
    path = run.events_path(1, 0)
    steps = len(run.merged("step"))
    path.write_bytes(b"x" + path.read_bytes())
    assert read_as_everybody_does(run)[-1].startswith("note: 1 damaged line")
    assert len(Run(run.path).merged("step")) == steps


def test_a_folder_a_pipe_or_an_unreadable_file_is_no_file(run: Run) -> None:
    path = run.events_path(1, run.ranks(1)[-1])
    be_folder(path)
    assert "cannot be read (not a file)" in read_as_everybody_does(run)[-1]
    path.rmdir()
    os.mkfifo(path)
    assert "cannot be read (not a file)" in read_as_everybody_does(run)[-1]


def test_files_of_strangers_are_no_attempts_and_no_ranks(run: Run) -> None:
    before = read_as_everybody_does(run)
    (run.path / "attempts" / "0007").write_text("not a folder")
    (run.path / "attempts" / "0001" / "rankx.jsonl").write_text("not a rank")
    assert run.attempts() == [1, 7]
    assert run.start_of(7) is None
    (run.path / "attempts" / "0007").unlink()
    assert read_as_everybody_does(run) == before


@pytest.mark.alone
def test_a_line_of_any_length_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "rank0.jsonl"
    good = b'{"kind": "note", "words": "x"}\n'
    with path.open("wb") as file:
        file.write(good)
        file.truncate(1 << 28)
        file.seek(0, 2)
        file.write(b"\n" + good)
    tracemalloc.start()
    events = list(read_events(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(events) == 2
    assert peak < 8 * LONGEST_LINE


def test_notes_golden(tmp_path: Path) -> None:
    """One file, several, and files that are none."""
    run = Run(shutil.copytree(FORMAT_1 / "interrupted-jpeg-2", tmp_path / "run"))
    lines = []
    for rank in (0, 1):
        path = run.events_path(1, rank)
        path.write_bytes(insert(b"x\ny")(path.read_bytes()))
        lines.append(read_as_everybody_does(run)[-1])
    be_folder(run.events_path(1, 1))
    lines.append(read_as_everybody_does(run)[-1])
    be_folder(run.events_path(1, 0))
    lines.append(explain(Run(run.path))[-1])
    check_golden("run_damage", lines)
