"""What was launched stays on record until its end was read back."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from stoker.fleet.sky.records import (
    GONE,
    LAUNCHED,
    CloudJob,
    UnreadableJob,
    jobs_below,
    read_job,
    write_job,
)

JOB = CloudJob("mine", True, 1.7e9, "A10G:1 on aws, spot", "s3://b/mine")


def test_a_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    job = JOB.with_state(LAUNCHED, 1.8e9)
    write_job(tmp_path / "mine", job)
    assert read_job(tmp_path / "mine") == job
    assert job.may_be_billed
    assert not job.with_state(GONE, 1.9e9).may_be_billed
    assert job.with_state("STOPPED", 1.9e9).may_be_billed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "{}",
        "[" * 100_000,
        json.dumps({**asdict(JOB), "state": 3}),
        json.dumps({**asdict(JOB), "managed": "no"}),
        json.dumps({**asdict(JOB), "launched": "now"}),
        json.dumps({**asdict(JOB), "launched": -1}),
        json.dumps({**asdict(JOB), "checked": True}),
        json.dumps({**asdict(JOB), "checked": float("nan")}),
        "x" * (2 << 20),
    ],
    ids=range(14),
)
def test_a_damaged_record_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sky.json").write_text(text)
    ((_, job),) = jobs_below(tmp_path)
    assert isinstance(job, UnreadableJob)
    assert job.why


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "device"])
def test_what_is_no_file_is_reported_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "mine" / "sky.json"
    path.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else "/dev/zero")
    assert isinstance(read_job(path.parent), UnreadableJob)


def test_other_folders_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "slurm-job").mkdir()
    (tmp_path / "file").touch()
    write_job(tmp_path / "mine", JOB)
    assert [folder.name for folder, _ in jobs_below(tmp_path)] == ["mine"]
    assert list(jobs_below(tmp_path / "nowhere")) == []
