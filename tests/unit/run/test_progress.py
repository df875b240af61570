"""How far a run is, seen from outside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.run.directory import Run
from stoker.run.events import Events
from stoker.run.progress import RunProgress


def events_of(path: Path) -> Events:
    run = Run(path)
    return Events(run.events_path(run.new_attempt(), 0))


def test_steps_are_progress_and_measurements_are_not(tmp_path: Path) -> None:
    progress = RunProgress(tmp_path)
    assert progress.look() is None
    events = events_of(tmp_path)
    events.write("attempt", position=0, step=0)
    events.write("step", position=16, step=0)
    events.flush()
    first = progress.look()
    assert first and (first.attempt, first.step, first.events) == (1, 1, 2)
    events.write("probe", step=1)
    events.write("note", words="a note")
    events.write("stall", words="no step")
    events.flush()
    assert progress.look() == first
    events.write("end", outcome="finished")
    events.close()
    last = progress.look()
    assert last and (last.outcome, last.events) == ("finished", 3)


def test_a_new_attempt_is_progress(tmp_path: Path) -> None:
    progress = RunProgress(tmp_path)
    events_of(tmp_path).close()
    first = progress.look()
    events = events_of(tmp_path)
    events.write("attempt", position=160, step=10)
    events.close()
    second = progress.look()
    assert first and second and (first.attempt, second.attempt) == (1, 2)
    assert second.step == 10


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    events_of(tmp_path).close()
    file = Run(tmp_path).events_path(1, 0)
    line = b'{"kind": "step", "position": 16, "step": 4}\n'
    progress = RunProgress(tmp_path)
    file.write_bytes(line[:20])
    first = progress.look()
    file.write_bytes(line)
    second = progress.look()
    assert first and second and (first.step, second.step) == (0, 5)


def test_the_usual_time_of_a_step(tmp_path: Path) -> None:
    events_of(tmp_path).close()
    lines = [
        f'{{"kind": "step", "position": {n}, "step": {n}, "time": {1000.0 + 30 * n}}}\n'
        for n in range(10)
    ]
    Run(tmp_path).events_path(1, 0).write_text("".join(lines))
    position = RunProgress(tmp_path).look()
    assert position and position.step_s == 30.0


@pytest.mark.parametrize("kind", ["pipe", "noise", "endless line", "folder"])
def test_damage_is_no_progress_and_no_failure(tmp_path: Path, kind: str) -> None:
    events_of(tmp_path).close()
    file = Run(tmp_path).events_path(1, 0)
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.write_bytes(b"\xff{[\n" * 1000 if kind == "noise" else b"x" * (3 << 20))
    position = RunProgress(tmp_path).look()
    assert position and (position.step, position.events) == (0, 0)
