"""Only what hurts is a finding, and each says what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from golden import check_golden
from stoker.measure.environment import Environment, FreeSpace, Gpu
from stoker.measure.findings import Needs, findings

GB = 10**9
RUNS = FreeSpace("runs", "runs", 100 * GB, 10**6, True)
SOUND = Environment(
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


def test_a_sound_machine_has_nothing_odd() -> None:
    assert findings(SOUND, NEEDS) == []
    nothing_known = replace(
        SOUND, machine_cores=None, avx2=None, shm=None, open_files=None, synchronised=None, rooms=()
    )
    assert findings(nothing_known, Needs()) == []


GPU = Gpu("a GPU", 16 * GB, (8, 0))


CASES = [
    (replace(SOUND, open_files=256), NEEDS, "256"),
    (replace(SOUND, machine_cores=64), NEEDS, "8 of the 64"),
    (replace(SOUND, avx2=False), NEEDS, "AVX2"),
    (replace(SOUND, gpus=(GPU,) * 4), NEEDS, "8 cores for 4 GPUs"),
    (SOUND, Needs(set_bytes=33 * GB), "33.0 GB"),
    (SOUND, Needs(checkpoint_bytes=40 * GB), "40.0 GB"),
    (replace(SOUND, rooms=(replace(RUNS, inodes=9),)), NEEDS, "9"),
    (replace(SOUND, rooms=(replace(RUNS, writable=False),)), NEEDS, "runs"),
    (replace(SOUND, synchronised=False), Needs(nodes=2), "clock"),
]


@pytest.mark.parametrize(("machine", "needs", "fact"), CASES)
def test_what_hurts_is_named_with_what_to_do(machine: Environment, needs: Needs, fact: str) -> None:
    (finding,) = findings(machine, needs)
    assert fact in finding.words
    assert finding.action


def test_every_sentence_golden() -> None:
    rows = [finding for machine, needs, _ in CASES for finding in findings(machine, needs)]
    check_golden("measure_findings", (f"{row.words}: {row.action}" for row in rows))


def test_a_clock_of_its_own_is_no_matter_alone() -> None:
    assert findings(replace(SOUND, synchronised=False), NEEDS) == []


def test_a_set_may_lie_where_nothing_can_be_written() -> None:
    read_only = FreeSpace("the set", "set", 0, 0, False)
    assert findings(replace(SOUND, rooms=(RUNS, read_only)), NEEDS) == []
