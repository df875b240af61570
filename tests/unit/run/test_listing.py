"""Summaries of runs, also of hostile ones."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from made_runs import BEGAN as MADE
from made_runs import RunMaker
from run_records import record
from stoker.history.history import history_of
from stoker.run.directory import Run
from stoker.run.events import Events, summary_path
from stoker.run.listing import (
    FAILED,
    FINISHED,
    KILLED,
    NEW,
    RUNNING,
    STOPPED,
    name_of,
    runs_below,
    summary_of,
)

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
        ([START, STEP, end("rolled back")], KILLED),
        ([START, STEP, end("failed")], FAILED),
        ([START, STEP, end("refused")], FAILED),
        ([START, STEP], KILLED),
        ([], NEW),
    ],
)
def test_how_a_run_ended(tmp_path: Path, events: list[dict[str, Any]], state: str) -> None:
    make_run(tmp_path, events)
    assert summary_of(tmp_path).state == state


def test_a_run_with_young_events_runs_somewhere(tmp_path: Path) -> None:
    make_run(tmp_path, [START, STEP])
    assert summary_of(tmp_path, BEGAN + 200).state == RUNNING
    assert summary_of(tmp_path, BEGAN + 2000).state == KILLED
    assert history_of(Run(tmp_path)).state(BEGAN + 200) == RUNNING
    assert history_of(Run(tmp_path)).state(BEGAN + 2000) == KILLED


def test_a_run_that_was_rolled_back_goes_on_at_once(tmp_path: Path) -> None:
    make_run(tmp_path, [START, STEP, end("rolled back")])
    assert summary_of(tmp_path, BEGAN + 300).state == RUNNING
    assert summary_of(tmp_path, BEGAN + 3000).state == KILLED


@pytest.mark.parametrize(
    ("holder", "state"),
    [
        ("process {gone} on {here}", KILLED),
        ("process {gone} on elsewhere", RUNNING),
        ("process {own} on {here}", RUNNING),
        ("process 99999999999999999999 on {here}", RUNNING),
        ("\udcff", RUNNING),
        ("", RUNNING),
    ],
)
def test_a_process_of_this_machine_that_is_gone_does_not_train(
    tmp_path: Path, holder: str, state: str
) -> None:
    """However young its last event is."""
    make_run(tmp_path, [START, STEP])
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    text = holder.format(gone=child.pid, own=os.getpid(), here=socket.gethostname())
    (tmp_path / "lock").write_bytes(os.fsencode(text))
    assert summary_of(tmp_path, BEGAN + 200).state == state


def test_a_run_that_is_locked_runs_here(tmp_path: Path) -> None:
    run = make_run(tmp_path, [START, STEP])
    run.lock()
    assert summary_of(tmp_path).state == RUNNING
    run.unlock()
    assert summary_of(tmp_path).state == KILLED


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
    assert summary.state in (NEW, KILLED)


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


def verdict(limit: str) -> dict[str, Any]:
    return {"kind": "verdict", "limit": limit, "words": f"{limit}: in words"}


def test_the_newest_verdict_counts(tmp_path: Path) -> None:
    make_run(tmp_path, [START, verdict("data"), STEP, verdict("compute"), STEP], [START, STEP])
    summary = summary_of(tmp_path)
    assert (summary.limit, summary.verdict) == ("compute", "compute: in words")


def test_what_a_run_is_about(tmp_path: Path) -> None:
    start = {**START, "samples": 64, "epochs": 4, "world": 8, "spent": 1.0, "per_hour": 36.0}
    make_run(tmp_path, [start, {**STEP, "position": 64, "batch": 32}])
    summary = summary_of(tmp_path)
    assert (summary.model, summary.recipe, summary.data) == ("resnet9_w16", "quick", "/sets/photos")
    assert (summary.epochs_done, summary.epochs, summary.ranks) == (1.5, 4, 8)
    assert (summary.dollars, summary.last) == (2.0, BEGAN + 100)


def test_an_attempt_that_did_not_train_hides_nothing(tmp_path: Path) -> None:
    start = {**START, "samples": 16, "world": 2, "spent": 1.0, "per_hour": 0.0}
    make_run(tmp_path, [start, STEP], [end("failed")])
    summary = summary_of(tmp_path)
    assert (summary.state, summary.ranks, summary.dollars) == (FAILED, 2, 1.0)


@pytest.mark.parametrize("text", [None, 7, ["x"], "x" * 10**6])
def test_texts_are_cut_and_others_left_out(tmp_path: Path, text: Any) -> None:
    make_run(tmp_path, [START, STEP])
    (tmp_path / "run.json").write_text(json.dumps(record(recipe=text, data=text)))
    summary = summary_of(tmp_path)
    assert not summary.problem
    assert len(summary.recipe) == len(summary.data) == (200 if isinstance(text, str) else 0)


def test_a_summary_file_is_as_good_as_the_events(tmp_path: Path) -> None:
    """Also of a killed attempt, whose summary lacks the last seconds."""
    maker = RunMaker(tmp_path, steps=400).attempt(0, 250, None).attempt(200, 400)
    with_summaries = summary_of(tmp_path)
    for attempt in (1, 2):
        summary_path(maker.run.events_path(attempt, 0)).unlink()
    assert summary_of(tmp_path) == with_summaries
    assert (with_summaries.state, with_summaries.limit) == (FINISHED, "compute")
    assert with_summaries.epochs_done == pytest.approx(10)
    assert with_summaries.best == pytest.approx(maker.best, abs=1e-3)


def test_the_verdict_and_the_evaluation_of_a_long_run_are_always_read(tmp_path: Path) -> None:
    """They are far from both ends of the events, and of which the summary has them all."""
    run = make_run(tmp_path)
    events = Events(run.events_path(run.new_attempt(), 0))
    events.write("attempt", position=0, step=0)
    pad = {"step": 0, "position": 0, "work": {"read": 0.1}, "note": "x" * 1000}
    for _ in range(400):
        events.write("step", **pad)
    events.write("verdict", limit="data")
    events.write("evaluation", position=1, images=100, top1=99)
    for _ in range(400):
        events.write("step", **pad)
    events.close()
    assert run.events_path(1, 0).stat().st_size > 3 << 18
    summary = summary_of(tmp_path)
    assert (summary.limit, summary.best) == ("data", 0.99)


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"end","outcome":"finished","span":"no"}',
        b'{"kind":"end","outcome":"finished","span":[5,-7]}',
        b'{"kind":"end","outcome":"finished","span":[0,9007199254740992]}',
        b"{",
        b"\xff\xfe",
    ],
)
def test_a_false_summary_file_makes_nothing_fail(tmp_path: Path, line: bytes) -> None:
    run = make_run(tmp_path, [START, STEP, end("failed")])
    summary_path(run.events_path(1, 0)).write_bytes(line + b"\n")
    assert summary_of(tmp_path).state in (FAILED, FINISHED)


CELL = "0123456789abcdef" * 2


def make_cell(grid: Path, label: Any = "lr=0.1 seed=2", cell: str = CELL) -> Path:
    run = grid / "cells" / cell / "work" / "run"
    make_run(run, [START, end("finished")])
    (grid / "cells" / cell / "cell.json").write_text(json.dumps({"label": label}))
    return run


def test_the_runs_in_the_cells_of_a_grid(tmp_path: Path) -> None:
    grid = tmp_path / "sweep"
    run = make_cell(grid)
    (grid / "cells" / ("f" * 32)).mkdir()
    make_cell(grid, cell="not a cell")
    make_run(tmp_path / "zero")
    assert list(runs_below(grid)) == [run]
    assert list(runs_below(tmp_path)) == [run, tmp_path / "zero"]
    assert summary_of(run).name == "01234567 lr=0.1 seed=2"


@pytest.mark.parametrize("label", [None, 7, {}])
def test_a_cell_without_a_label_is_named_by_its_first_letters(tmp_path: Path, label: Any) -> None:
    run = make_cell(tmp_path, label)
    assert name_of(run) == "01234567"
    (run.parent.parent / "cell.json").unlink()
    os.mkfifo(run.parent.parent / "cell.json")
    assert name_of(run) == "01234567"


def test_the_name_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "runs")
    assert [name_of(Path(text)) for text in ("a", ".", "a/..", "work/run")] == [
        *("a", "runs", "runs", "run")
    ]


def test_made_runs_are_read_alike_by_their_history(tmp_path: Path) -> None:
    RunMaker(tmp_path, steps=100).attempt(0, 60, "interrupted")
    summary, history = summary_of(tmp_path, MADE + 9999), history_of(Run(tmp_path))
    assert summary.state == history.state(MADE + 9999) == STOPPED
    assert summary.dollars == pytest.approx(history.dollars(MADE + 9999), abs=1e-3)
    assert history.best
    share = history.best["top1"] / history.best["images"]
    assert summary.best == pytest.approx(share, abs=1e-3)
