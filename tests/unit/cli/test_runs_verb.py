"""stoker runs: the table, and what is billed until it was read back."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from golden import check_golden
from rented import RentedMachine
from run_records import record
from stoker.cli import main
from stoker.errors import FAILED, FINISHED
from stoker.fleet.sky.records import GONE, LAUNCHED, UNLISTED, CloudJob, read_job, write_job
from stoker.run.directory import Run
from stoker.show.runs import billed_lines

JOB = CloudJob("mine", False, time.time() - 7200, "L4:1 on gcp, on demand", "gs://b/mine", LAUNCHED)


def make_run(path: Path, outcome: str = "finished", best: float = 0.913) -> None:
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps(record()))
    file = Run(path).events_path(1, 0)
    file.parent.mkdir(parents=True)
    start = {"kind": "attempt", "position": 0, "step": 0, "time": 1.7e9}
    end = {"kind": "end", "outcome": outcome, "best": best, "time": 1.7e9 + 5400}
    file.write_text(f"{json.dumps(start)}\n{json.dumps(end)}\n")


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
