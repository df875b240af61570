from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulated import SimulatedClock, SimulatedFiles
from stoker.locks.files import DiskFiles
from stoker.locks.lease import BEATS_S, EXPIRES_S, YIELDS_S, Holder, Lease, Leases

CELL = "0" * 32


def worker(files: SimulatedFiles, name: str) -> Leases:
    return Leases(files, SimulatedClock(), Holder(name, name))


def taken(leases: Leases) -> Lease:
    lease = leases.take(CELL)
    assert lease is not None
    return lease


def pass_time(seconds: float, *workers: Leases) -> None:
    for each in workers:
        each.clock.sleep(seconds)


def test_one_worker_has_a_cell() -> None:
    files = SimulatedFiles()
    a, b = worker(files, "a"), worker(files, "b")
    lease = taken(a)
    assert b.take(CELL) is None
    assert a.commit(lease, b"{}")
    a.end(lease, {"outcome": "finished"})
    assert files.content[f"cells/{CELL}/result.json"] == b"{}"


def test_a_cell_whose_holder_ended_is_free() -> None:
    files = SimulatedFiles()
    a, b = worker(files, "a"), worker(files, "b")
    a.end(taken(a), {"outcome": "interrupted"})
    assert taken(b).number == 2


def test_a_holder_that_beats_keeps_its_cell() -> None:
    files = SimulatedFiles()
    a, b = worker(files, "a"), worker(files, "b")
    lease = taken(a)
    for _ in range(100):
        pass_time(BEATS_S, a, b)
        assert a.beat(lease)
        assert b.take(CELL) is None


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0])
def test_a_holder_that_stands_still_loses_its_cell_and_commits_nothing(rate: float) -> None:
    """Whatever the rates of their clocks."""
    files = SimulatedFiles()
    a, b = worker(files, "a"), worker(files, "b")
    lease = taken(a)
    assert b.take(CELL) is None
    later = None
    waited = 0.0
    while later is None:
        pass_time(1.0, b)
        pass_time(rate, a)
        waited += 1.0
        later = b.take(CELL)
    assert EXPIRES_S <= waited <= EXPIRES_S + 2
    assert not a.beat(lease)
    assert not a.commit(lease, b"a")
    assert b.commit(later, b"b")
    a.end(lease, {})
    assert f"cells/{CELL}/leases/000001.end" not in files.content


def test_a_holder_without_its_disk_gives_up_before_another_may_begin() -> None:
    files = SimulatedFiles()
    cut_off = SimulatedFiles(files.content, lambda: False)
    a = worker(files, "a")
    lease = taken(a)
    a.files = cut_off
    while a.beat(lease):
        pass_time(0.5, a)
    assert a.clock.now() <= YIELDS_S + 1 < EXPIRES_S / 2


def test_a_holder_that_wakes_late_sees_the_later_lease() -> None:
    files = SimulatedFiles()
    a, b = worker(files, "a"), worker(files, "b")
    lease = taken(a)
    b.take(CELL)
    pass_time(EXPIRES_S + 1, b)
    taken(b)
    assert not a.commit(lease, b"a")  # its own clock stood still


def test_a_second_result_is_refused() -> None:
    files = SimulatedFiles()
    a = worker(files, "a")
    lease = taken(a)
    assert a.commit(lease, b"1")
    assert not a.commit(lease, b"2")
    assert files.content[f"cells/{CELL}/result.json"] == b"1"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_death_of_a_process_on_this_machine_is_seen_at_once(tmp_path: Path) -> None:
    files = DiskFiles(tmp_path)
    code = (
        "import sys; from pathlib import Path\n"
        "from stoker.locks.files import DiskFiles, SystemClock\n"
        "from stoker.locks.lease import Holder, Leases\n"
        "leases = Leases(DiskFiles(Path(sys.argv[1])), SystemClock(), Holder.this_process())\n"
        f"print(leases.take('{CELL}').number, flush=True); input()"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "1\n"
        leases = Leases(files, SimulatedClock(), Holder.this_process())
        assert leases.take(CELL) is None
        other.kill()
        other.wait()
        assert taken(leases).number == 2


def test_a_lease_that_cannot_be_read_still_holds(tmp_path: Path) -> None:
    files = SimulatedFiles({f"cells/{CELL}/leases/000001": b"\xff{"})
    b = worker(files, "b")
    assert b.take(CELL) is None
    pass_time(EXPIRES_S + 1, b)
    assert taken(b).number == 2


def test_holders_of_another_machine_or_container_are_not_called_dead() -> None:
    own = Holder.this_process()
    gone = json.loads(json.dumps({**vars(own), "pid": 2**22 + os.getpid()}))
    assert Holder(**gone).is_dead(own)
    assert not Holder(**{**gone, "boot": "another"}).is_dead(own)
    assert not Holder(**{**gone, "space": "another"}).is_dead(own)
    assert not own.is_dead(own)


def test_a_holder_that_stood_still_alone_takes_the_next_lease() -> None:
    files = SimulatedFiles()
    a = worker(files, "a")
    lease = taken(a)
    pass_time(10 * EXPIRES_S, a)
    assert a.keep(lease)
    assert lease.number == 2
    assert a.keep(lease)
    assert taken_by(files) == ["a", "a"]


def test_a_holder_that_stood_still_has_lost_to_one_that_was_quicker() -> None:
    files = SimulatedFiles()
    a, b = worker(files, "a"), worker(files, "b")
    lease = taken(a)
    assert b.take(CELL) is None
    pass_time(EXPIRES_S + 1, a, b)
    assert taken(b).number == 2
    assert not a.keep(lease)
    assert not a.keep(lease)
    assert taken_by(files) == ["a", "b"]


def test_a_disk_that_does_not_answer_for_a_while_loses_nothing() -> None:
    answers = True
    files = SimulatedFiles(reachable=lambda: answers)
    a = worker(files, "a")
    lease = taken(a)
    answers = False
    pass_time(YIELDS_S, a)
    assert a.keep(lease)
    pass_time(1, a)
    assert not a.keep(lease)
    answers = True
    assert a.keep(lease)


def taken_by(files: SimulatedFiles) -> list[str]:
    leases = sorted(name for name in files.content if name[-6:].isdecimal())
    return [json.loads(files.content[name])["name"] for name in leases]
