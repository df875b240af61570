"""The machines that a run has had."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from stoker.run.leases import BEAT_S, FOLDER, USED_UP, LeaseFile, past_leases, used_s


def write(path: Path, *records: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def test_hours_go_from_the_first_line_to_the_last(tmp_path: Path) -> None:
    write(
        tmp_path / FOLDER / "000001.jsonl",
        {"kind": "begin", "time": 1000.0, "step": 5},
        {"kind": "beat", "time": 4600.0},
    )
    write(
        tmp_path / FOLDER / "000002.jsonl",
        {"kind": "begin", "time": 9000.0, "step": 80},
        {"kind": USED_UP, "time": 9100.0},
    )
    first, second = past_leases(tmp_path)
    assert (first.step, first.seconds, first.used_up) == (5, 3600.0, False)
    assert (second.step, second.seconds, second.used_up) == (80, 100.0, True)
    assert used_s(tmp_path) == 3700.0


def test_each_machine_has_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    for step in (0, 7):
        file = LeaseFile(tmp_path)
        file.write("ended")  # not begun: nothing to end
        file.beat(step)
        file.beat(step + 1)
        now += BEAT_S
        file.beat(step + 2)
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == [
        "000001.jsonl",
        "000002.jsonl",
    ]
    assert [lease.step for lease in past_leases(tmp_path)] == [0, 7]
    assert used_s(tmp_path) == pytest.approx(2 * BEAT_S, abs=0.2)


def test_a_number_that_is_taken_is_not_taken_again(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "000001.jsonl").symlink_to("nowhere")
    LeaseFile(tmp_path).beat(0)
    assert (tmp_path / FOLDER / "000002.jsonl").is_file()
    assert not (tmp_path / FOLDER / "nowhere").exists()


def test_damage_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    write(folder / "000001.jsonl", {"kind": "begin", "time": "x"}, [], 3)
    write(folder / "000002.jsonl", {"kind": "begin", "time": 10.0, "step": -4}, {"time": 30.0})
    (folder / "000003.jsonl").write_bytes(b"\xff" * 100)
    (folder / "000004.jsonl").write_text("x" * (2 << 20))
    os.mkfifo(folder / "000005.jsonl")
    (lease,) = past_leases(tmp_path)
    assert (lease.step, lease.seconds) == (0, 20.0)
    assert past_leases(tmp_path / "nowhere") == []
