"""stoker runs: the table, and what is billed until it was read back."""

from __future__ import annotations

import csv
import io
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from golden import check_golden
from made_runs import RunMaker
from measured import held, measured
from rented import RentedMachine
from run_records import record
from stoker.cli import main
from stoker.errors import BAD_REQUEST, FAILED, FINISHED
from stoker.fleet.sky.records import GONE, LAUNCHED, UNLISTED, CloudJob, read_job, write_job
from stoker.run.directory import Run
from stoker.show.runs import billed_lines

JOB = CloudJob("mine", False, time.time() - 7200, "L4:1 on gcp, on demand", "gs://b/mine", LAUNCHED)


def make_run(
    path: Path,
    outcome: str = "finished",
    best: float = 0.913,
    *,
    limit: str = "",
    dollars: float | None = None,
    **facts: Any,
) -> None:
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps(record(**facts)))
    file = Run(path).events_path(1, 0)
    file.parent.mkdir(parents=True)
    money = {} if dollars is None else {"spent": dollars, "per_hour": 0.0}
    size = {"samples": 100, "epochs": 8, "world": 2}
    start = {"kind": "attempt", "position": 0, "step": 0, "time": 1.7e9, **size, **money}
    words = f"{limit}: what it is, in words of some length that need space"
    verdict = {"kind": "verdict", "limit": limit, "words": words}
    end = {"kind": "end", "outcome": outcome, "best": best, "time": 1.7e9 + 5400, "position": 250}
    events = [start, *([verdict] if limit else []), end]
    file.write_text("".join(f"{json.dumps(event)}\n" for event in events))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RentedMachine:
    machine: RentedMachine = RentedMachine.rent(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", machine.environment["PATH"])
    monkeypatch.setenv("STAND_IN", str(tmp_path))
    return machine


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["runs", *words]) == FINISHED
    return capsys.readouterr().out


def test_a_machine_is_billed_until_it_reads_back_gone(
    desk: RentedMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(Path("jobs/mine"), JOB)
    assert "mine (L4:1 on gcp, on demand)" in listed(capsys)
    assert "UP" in listed(capsys, "--refresh")
    desk.call("stop")
    assert "stopped, and its disk is billed" in listed(capsys, "--refresh")
    desk.call("end")
    # It is ending: its state has to be read some times until it is gone.
    while desk.record["state"] != "terminated":
        assert "mine (L4:1" in listed(capsys, "--refresh")
        desk.call("state")
    text = listed(capsys, "--refresh")
    assert "1 job read back from SkyPilot, 1 gone" in text
    assert "mine (L4:1" not in text
    assert "gs://b/mine: storage" in text
    assert "mine (L4:1" not in listed(capsys)


def test_no_answer_changes_nothing(
    desk: RentedMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_job(Path("jobs/mine"), JOB)
    (desk.root / "bin" / "sky").write_text("#!/bin/sh\necho no cloud >&2; exit 1\n")
    assert main(["runs", "--refresh"]) == FAILED
    assert "no cloud" in capsys.readouterr().err
    assert read_job(Path("jobs/mine")) == JOB
    monkeypatch.setenv("PATH", str(desk.root))
    assert main(["runs", "--refresh"]) == FAILED
    assert read_job(Path("jobs/mine")) == JOB


def test_the_machine_that_watches_jobs_is_billed_too(
    desk: RentedMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.write(others=[{"name": "sky-jobs-controller-1", "status": "STOPPED"}], state="terminated")
    write_job(Path("jobs/mine"), JOB)
    assert "sky-jobs-controller-1" in listed(capsys, "--refresh")


def test_lines_golden(
    desk: RentedMachine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(Path("runs/first-look"))
    make_run(Path("runs/second\x1b[2J"), "interrupted", -1.0)
    make_run(Path("runs/" + "x" * 60), "failed")
    (Path("runs/broken")).mkdir()
    Path("runs/broken/run.json").write_text("{")
    now = JOB.launched + 7200
    jobs = [
        (Path("a"), JOB),
        (Path("b"), JOB.with_state("STOPPED", now - 60)),
        (Path("d"), JOB.with_state(UNLISTED, now - 60)),
        (Path("c"), JOB.with_state(GONE, now - 60)),
    ]
    lines = listed(capsys).splitlines()
    assert max(map(len, lines)) <= 80
    lines += billed_lines(jobs, {"sky-jobs-controller-1": "STOPPED"}, now)
    check_golden("runs_table", lines)


def test_json_has_the_same_and_escapes_names(
    desk: RentedMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(Path("runs/first-look"))
    make_run(Path(os.fsdecode(b"runs/\xff")))
    write_job(Path("jobs/mine"), JOB)
    figures = json.loads(listed(capsys, "--json", "-"))
    assert [run["path"] for run in figures["runs"]] == ["runs/first-look", "runs/\\xff"]
    assert figures["runs"][0]["hours"] == 1.5
    assert figures["jobs"][0]["may_be_billed"] is True
    listed(capsys, "--json", "figures.json")
    assert json.loads(Path("figures.json").read_text())["jobs"] == figures["jobs"]


def test_nothing_is_asked_and_nothing_written_without_refresh(
    desk: RentedMachine, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(Path("jobs/mine"), JOB)
    before = {path: path.stat().st_mtime_ns for path in desk.root.rglob("*")}
    listed(capsys)
    assert before == {path: path.stat().st_mtime_ns for path in desk.root.rglob("*")}


def test_a_folder_of_hostile_runs_takes_little_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(200):
        folder = tmp_path / f"{number}\x1b]0;x\x07"
        (folder / "attempts" / "0001").mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps(record(values={"model": "\x1b[31m" * 99})))
        os.mkfifo(folder / "attempts" / "0001" / "rank0.jsonl")
        os.mkfifo(folder / "lock")
        os.mkfifo(folder / "sky.json")
    began = time.monotonic()
    text = listed(capsys, str(tmp_path))
    assert time.monotonic() - began < 20
    assert "\x1b" not in text
    assert "\x07" not in text
    assert len(text.splitlines()) == 1 + 200 + 1 + 200


HOSTILE = "\x1b[2Jx" * 30


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs of every kind of value."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    values = {"model": "mobilenetv3_small_100.lamb_in1k"}
    make_run(Path("runs/mobilenet-small-first"), values=values, limit="checkpoint", dollars=1234.5)
    make_run(Path("runs/resnet"), "interrupted", 0.5, limit="compute", dollars=0.5)
    make_run(Path("runs/untitled"), "failed", -1.0)
    return Path("runs")


def names(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:]]


def test_a_table_fits_the_terminal_golden(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(runs / ("y" * 90), values={"model": HOSTILE}, limit=HOSTILE)
    lines = []
    for columns in (80, 110, 160, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        table = listed(capsys).splitlines()
        assert max(map(len, table)) <= columns
        lines += [f"{columns} columns:", *table]
    check_golden("runs_widths", lines)
    monkeypatch.setenv("COLUMNS", "20")
    assert max(map(len, listed(capsys).splitlines())) <= 80


def test_runs_are_sorted_and_chosen(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert names(listed(capsys, "--sort", "best"))[0] == "resnet"
    assert names(listed(capsys, "--sort", "best", "--reverse"))[1:] == ["resnet", "untitled"]
    assert names(listed(capsys, "--filter", "best>0.7"))[1:] == []
    assert names(listed(capsys, "--filter", "name=*e*", "--filter", "dollars<1")) == ["resnet"]
    assert names(listed(capsys, "--filter", "limit=compute")) == ["resnet"]
    assert "fits every --filter" in listed(capsys, "--filter", "best>0.99")
    figures = json.loads(listed(capsys, "--json", "-", "--filter", "epochs=2.5", "--sort", "hours"))
    assert [run["limit"] for run in figures["runs"]] == ["checkpoint", "compute", None]


@pytest.mark.parametrize(
    "words",
    [
        ("--filter", "best"),
        ("--filter", "speed>2"),
        ("--sort", "size"),
        ("--json", "-", "--csv", "-"),
        ("--csv", "nowhere/runs.csv"),
        ("nowhere",),
    ],
)
def test_a_mistake_is_a_bad_request(
    runs: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where SkyPilot would be asked first."""
    assert main(["runs", *words, "--refresh"]) == BAD_REQUEST
    captured = capsys.readouterr()
    assert not captured.out
    assert "stoker: " in captured.err


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text), strict=True))


def test_csv_has_every_column(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_, last = rows_of(listed(capsys, "--csv", "-"))
    assert first == {
        "name": "mobilenet-small-first",
        "path": "runs/mobilenet-small-first",
        "model": "mobilenetv3_small_100.lamb_in1k",
        "state": "finished",
        "best": "0.913",
        "hours": "1.5",
        "dollars": "1234.5",
        "limit": "checkpoint",
        "verdict": "checkpoint: what it is, in words of some length that need space",
        "epochs_done": "2.5",
        "epochs": "8",
        "data": "/sets/photos",
        "recipe": "quick",
        "ranks": "2",
        "last": "2023-11-14T23:43:20+00:00",
        "problem": "",
    }
    assert (last["best"], last["dollars"], last["limit"]) == ("", "", "")
    listed(capsys, "--csv", "runs.csv")
    assert rows_of(Path("runs.csv").read_text())[0] == first


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_no_cell_of_csv_is_a_formula(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {"recipe": text, "data": text, "values": {"model": f'{text}\x1b,"\n'}}
    make_run(tmp_path / text, limit=text, **facts)
    (tmp_path / f"{text}broken").mkdir()
    (tmp_path / f"{text}broken" / "run.json").write_text("{")
    printed = listed(capsys, str(tmp_path), "--csv", "-")
    assert printed.isascii()
    assert not [c for c in printed if not c.isprintable() and c != "\n"]
    rows = rows_of(printed)
    assert len(rows) == 2
    cells = [cell for row in rows for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert rows[0]["ranks"] == "2"


def test_the_cells_of_a_sweep_are_listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = Path("sweeps/lr/cells") / ("ab" * 16)
    make_run(cell / "work" / "run")
    (cell / "cell.json").write_text(json.dumps({"label": "lr=0.1 \x1b[2J"}))
    for folder in ("sweeps", "sweeps/lr"):
        (line,) = listed(capsys, folder).splitlines()[1:]
        assert line.startswith("abababab lr=0.1 \\x1b[2J  resnet9_w16")


@pytest.mark.alone
@measured()
def test_a_thousand_runs_are_listed_in_two_seconds(tmp_path: Path) -> None:
    """Of processor time: what others run at the same time does not count."""
    RunMaker(tmp_path / "runs" / "0", steps=100).attempt(0, 60, None).attempt(50, 100)
    for number in range(1, 1000):
        shutil.copytree(tmp_path / "runs" / "0", tmp_path / "runs" / str(number))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "stoker", "runs"]
    out = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert len(out.splitlines()) == 1001
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    held(used_s < 2, used_s)
