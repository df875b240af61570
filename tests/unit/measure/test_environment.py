"""What a machine is: absent facts stay absent, and only what hurts is called odd."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.host.counters import Machine, Reading
from stoker.measure import environment
from stoker.measure.environment import (
    Gpu,
    Needs,
    Neighbours,
    Room,
    Surroundings,
    as_data,
    driver_version,
    facts_here,
    has_avx2,
    oddities,
    room_at,
)

GB = 10**9
RUNS = Room("runs", "runs", 100 * GB, 10**6, True)
SOUND = Surroundings(
    versions={"stoker": "1"},
    processor="a processor",
    cores=8,
    machine_cores=8,
    avx2=True,
    memory=32 * GB,
    region="",
    shm=1 << 20,
    open_files=1024,
    synchronised=True,
    rooms=(RUNS,),
)
NEEDS = Needs(set_bytes=10 * GB, checkpoint_bytes=GB)


def test_this_machine_is_described() -> None:
    found = facts_here([("runs", Path("no/such/folder/yet"))])
    assert found.versions["stoker"] and found.versions["torch"] and found.versions["opencv"]
    assert found.cores >= 1 and found.memory > 0
    assert [room.what for room in found.rooms] == ["runs"]
    assert json.loads(json.dumps(as_data(found)))["cores"] == found.cores


def test_a_sound_machine_has_nothing_odd() -> None:
    assert oddities(SOUND, NEEDS) == []
    nothing_known = replace(
        SOUND, machine_cores=None, avx2=None, shm=None, open_files=None, synchronised=None, rooms=()
    )
    assert oddities(nothing_known, Needs()) == []


GPU = Gpu("a GPU", 16 * GB, (8, 0))


@pytest.mark.parametrize(
    ("facts", "needs", "words", "action"),
    [
        (replace(SOUND, open_files=256), NEEDS, "only 256 files", "ulimit -n 4096"),
        (replace(SOUND, machine_cores=64), NEEDS, "8 of the 64 cores", "ask the scheduler"),
        (replace(SOUND, avx2=False), NEEDS, "no AVX2", "another machine"),
        (replace(SOUND, gpus=(GPU,) * 4), NEEDS, "8 cores for 4 GPUs", "at least 4 cores"),
        (SOUND, Needs(set_bytes=33 * GB), "larger than the memory", "--max-side"),
        (SOUND, Needs(checkpoint_bytes=40 * GB), "a checkpoint takes 40.0 GB", "--run DIR"),
        (replace(SOUND, rooms=(replace(RUNS, inodes=9),)), NEEDS, "9 more files", "old runs"),
        (replace(SOUND, rooms=(replace(RUNS, writable=False),)), NEEDS, "written", "--run DIR"),
        (replace(SOUND, synchronised=False), Needs(nodes=2), "the clock", "chrony"),
    ],
)
def test_what_hurts_is_said_with_what_to_do(
    facts: Surroundings, needs: Needs, words: str, action: str
) -> None:
    (found,) = oddities(facts, needs)
    assert words in found.words
    assert action in found.action


def test_a_clock_of_its_own_is_no_matter_alone() -> None:
    assert oddities(replace(SOUND, synchronised=False), NEEDS) == []


def test_a_set_may_lie_where_nothing_can_be_written() -> None:
    read_only = Room("the set", "set", 0, 0, False)
    assert oddities(replace(SOUND, rooms=(RUNS, read_only)), NEEDS) == []


def test_room_is_that_of_the_nearest_folder_there_is(tmp_path: Path) -> None:
    found = room_at("runs", tmp_path / "not" / "yet")
    assert found is not None and found.free > 0 and found.writable
    assert found.path == str(tmp_path / "not" / "yet")


def test_what_nobody_tells_is_none(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "none")
    assert driver_version(nowhere) is None
    assert has_avx2(nowhere) is None
    assert environment.size_of_disk(Path(nowhere)) is None
    assert Neighbours(nowhere).cores() is None


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


def test_a_driver_is_read(tmp_path: Path) -> None:
    file = tmp_path / "version"
    file.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n")
    assert driver_version(str(file)) == "550.54.15"


def test_neighbours_are_what_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, own = tmp_path / "stat", [0.0]
    monkeypatch.setattr(environment, "own_cpu_s", lambda: own[0])
    monkeypatch.setattr(environment.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(environment.os, "sysconf", lambda name: 100)
    file.write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    watch = Neighbours(str(file))
    own[0] = 5.0
    # Ten seconds of two cores: 12 s used, of which 5 are ours, 8 s idle.
    file.write_text("cpu 1000 0 200 700 100 0 0 0 0 0\n")
    assert watch.cores() == pytest.approx(0.7)
