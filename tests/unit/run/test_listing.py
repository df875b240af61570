"""Summaries of runs, also of hostile ones."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from run_records import record
from stoker.run.directory import Run
from stoker.run.events import Events
from stoker.run.listing import FAILED, FINISHED, NEW, RUNNING, STOPPED, runs_below, summary_of

BEGAN = 1.7e9


def make_run(path: Path, *attempts: list[dict[str, Any]]) -> Run:
    """A run whose events are 100 s apart."""
    run = Run(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / "run.json").write_text(json.dumps(record()))
    at = BEGAN
    for events in attempts:
        file = run.events_path(run.new_attempt(), 0)
        lines = []
        for event in events:
            lines.append(json.dumps({"time": at, **event}))
            at += 100
        file.write_text("".join(f"{line}\n" for line in lines))
        at += 5000
    return run


START = {"kind": "attempt", "position": 0, "step": 0}
STEP = {"kind": "step", "position": 16, "step": 1}


def evaluated(top1: int) -> dict[str, Any]:
    return {"kind": "evaluation", "position": 16, "images": 100, "top1": top1}


def end(outcome: str, **facts: Any) -> dict[str, Any]:
    return {"kind": "end", "outcome": outcome, **facts}


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([START, STEP, end("finished")], FINISHED),
        ([START, STEP, end("interrupted")], STOPPED),
        ([START, STEP, end("rolled back")], STOPPED),
        ([START, STEP, end("failed")], FAILED),
        ([START, STEP, end("refused")], FAILED),
        ([START, STEP], STOPPED),
        ([], NEW),
    ],
)
def test_how_a_run_ended(tmp_path: Path, events: list[dict[str, Any]], state: str) -> None:
    make_run(tmp_path, events)
    assert summary_of(tmp_path).state == state


def test_a_run_with_young_events_runs_somewhere(tmp_path: Path) -> None:
    make_run(tmp_path, [START, STEP])
    assert summary_of(tmp_path, BEGAN + 200).state == RUNNING
    assert summary_of(tmp_path, BEGAN + 2000).state == STOPPED


def test_a_run_that_is_locked_runs_here(tmp_path: Path) -> None:
    run = make_run(tmp_path, [START, STEP])
    run.lock()
    assert summary_of(tmp_path).state == RUNNING
    run.unlock()
    assert summary_of(tmp_path).state == STOPPED


def test_hours_are_those_of_all_attempts(tmp_path: Path) -> None:
    make_run(tmp_path, [START, STEP, STEP], [START, STEP], [])
    assert summary_of(tmp_path).hours == pytest.approx(300 / 3600, abs=1e-4)


def test_the_best_result_of_events_and_checkpoint(tmp_path: Path) -> None:
    make_run(tmp_path, [START, evaluated(70), evaluated(60)])
    assert summary_of(tmp_path).best == 0.7
    folder = tmp_path / "checkpoints" / "000000016"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"best": 0.8}))
    (tmp_path / "last").write_text(folder.name)
    assert summary_of(tmp_path).best == 0.8
    make_run(tmp_path, [START, end("finished", best=0.9)])
    assert summary_of(tmp_path).best == 0.9


@pytest.mark.parametrize("name", ["../../x", "a/b", "", "\0", "x" * 500])
def test_a_pointer_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    make_run(tmp_path / "run", [START])
    (tmp_path / "run" / "last").write_text(name)
    (tmp_path / "manifest.json").write_text('{"best": 0.5}')
    assert summary_of(tmp_path / "run").best is None


@pytest.mark.parametrize(
    "kind", ["pipe", "folder", "loop", "noise", "deep", "huge", "empty", "list"]
)
def test_a_record_that_is_none_is_a_problem(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "run" / "run.json"
    file.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind == "loop":
        file.symlink_to(file)
    else:
        text = {"noise": "\x1b[2J{", "deep": "[" * 10**6, "empty": "", "list": "[]"}
        file.write_text(text.get(kind, ""))
        if kind == "huge":
            os.truncate(file, 1 << 40)
    (run,) = runs_below(tmp_path)
    assert summary_of(run).problem


@pytest.mark.parametrize("name", ["lock", "last", "attempts", "attempts/0001/rank0.jsonl"])
@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
def test_nothing_waits(tmp_path: Path, name: str, kind: str) -> None:
    make_run(tmp_path, [])
    path = tmp_path / name
    if path.is_dir():
        (path / "0001" / "rank0.jsonl").unlink()
        (path / "0001").rmdir()
        path.rmdir()
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    began = time.monotonic()
    summary = summary_of(tmp_path)
    assert time.monotonic() - began < 10
    assert summary.state in (NEW, STOPPED)


def test_a_long_run_is_read_at_its_ends_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path, [START, evaluated(40)])
    file = run.events_path(1, 0)
    with file.open("ab") as lines:
        lines.truncate(1 << 34)
        lines.seek(1 << 34)
        lines.write(b"\n" + json.dumps({"time": BEGAN + 7200, **end("failed", best=0.5)}).encode())
        lines.write(b"\n")
    summary = summary_of(tmp_path)
    assert (summary.state, summary.best, summary.hours) == (FAILED, 0.5, 2.0)


def test_folders_of_runs(tmp_path: Path) -> None:
    for name in ("b", "a"):
        make_run(tmp_path / name)
    (tmp_path / "none").mkdir()
    (tmp_path / "file").touch()
    assert [path.name for path in runs_below(tmp_path)] == ["a", "b"]
    assert list(runs_below(tmp_path / "a")) == [tmp_path / "a"]
    assert list(runs_below(tmp_path / "nowhere")) == []


def test_events_are_those_that_stoker_writes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    events = Events(run.events_path(run.new_attempt(), 0))
    events.write("attempt", position=0, step=0)
    events.write("end", outcome="finished", best=0.25)
    events.close()
    summary = summary_of(tmp_path)
    assert (summary.state, summary.best, summary.model) == (FINISHED, 0.25, "resnet9_w16")
