"""What a machine offers: facts that cannot be known stay absent."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from stoker.host import proc
from stoker.host.counters import Machine, Reading
from stoker.measure import environment
from stoker.measure.environment import (
    OtherProcesses,
    as_data,
    attempt_environment,
    environment_here,
    free_space,
    has_avx2,
    processor_name,
)


def test_this_machine_is_described() -> None:
    here = environment_here([("runs", Path("no/such/folder/yet"))])
    assert here.versions["stoker"] and here.versions["torch"] and here.versions["opencv"]
    assert here.cores >= 1 and here.memory > 0
    assert [space.what for space in here.rooms] == ["runs"]
    assert json.loads(json.dumps(as_data(here)))["cores"] == here.cores


def test_free_space_is_that_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    space = free_space("runs", tmp_path / "not" / "yet")
    assert space is not None and space.free > 0 and space.writable
    assert space.path == str(tmp_path / "not" / "yet")


def test_what_is_unknown_is_none(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none")
    assert processor_name(nowhere)
    assert has_avx2(nowhere) is None
    assert environment.size_of_disk(Path(nowhere)) is None
    assert OtherProcesses(nowhere).cores() is None


def test_of_a_limit_only_what_is_left_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = {"available_bytes": 900.0, "limit_bytes": 500.0, "used_bytes": 450.0}

    def read(machine: Machine) -> Reading:
        return Reading(0.0, levels=levels)

    monkeypatch.setattr(Machine, "read", read)
    assert environment.free_memory() == 50
    del levels["limit_bytes"]
    assert environment.free_memory() == 900
    levels.clear()
    assert environment.free_memory() > 0


def test_a_driver_is_read() -> None:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n"
    assert proc.driver_version(text) == "550.54.15"


def test_the_processor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.platform, "machine", lambda: "x86_64")
    file = tmp_path / "cpuinfo"
    file.write_text("model name\t: A processor\nflags\t\t: fpu avx2 sse\n\n")
    assert processor_name(str(file)) == "A processor"
    assert has_avx2(str(file)) is True
    file.write_text("flags\t\t: fpu avx2fake sse\n")
    assert has_avx2(str(file)) is False
    monkeypatch.setattr(environment.platform, "machine", lambda: "aarch64")
    assert has_avx2(str(file)) is None


def test_an_attempt_records_what_it_runs_on() -> None:
    record = attempt_environment(torch.device("cpu"))
    assert record["device"] == processor_name()
    assert record["process"] == os.getpid() and record["cores"] >= 1
    assert json.loads(json.dumps(record)) == record


def test_only_other_processes_are_counted(tmp_path: Path) -> None:
    file, own_s, second = tmp_path / "stat", [0.0], os.sysconf("SC_CLK_TCK")
    file.write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    others = OtherProcesses(str(file), own_cpu_s=lambda: own_s[0])
    own_s[0] = 5.0
    # 20 s of all cores: 12 s used, of which 5 s are ours, and 8 s idle.
    file.write_text(f"cpu {10 * second} 0 {2 * second} {7 * second} {second} 0 0 0 0 0\n")
    assert others.cores() == pytest.approx(7 / 20 * (os.cpu_count() or 1))
