"""The simulator's own rules: time, waiting, kills and the disk."""

from __future__ import annotations

import errno

import pytest

from simulation.disk import Disk, DiskPath, link
from simulation.standins import Event, Lock, Thread, monotonic
from simulation.world import Machine, Process, Violation, World, current, sleep


def ended(world: World, *processes: Process, until: float = 100.0) -> list[int | None]:
    """The exit codes of processes, once all have ended."""
    world.run(lambda: all(process.dead for process in processes), until)
    return [process.code for process in processes]


def test_a_clock_runs_at_the_rate_of_its_machine() -> None:
    world = World(0)
    slow, fast = (Process(Machine(world, str(rate), rate), "it") for rate in (0.5, 2.0))
    times: list[float] = []

    def body() -> int:
        sleep(3.0)
        times.append(world.now)
        return int(monotonic())

    slow.run(body)
    fast.run(body)
    assert ended(world, slow, fast) == [3, 3]
    assert times == [1.5, 6.0]


def test_a_process_that_is_killed_does_nothing_more() -> None:
    world = World(0)
    victim, effects = Process(Machine(world, "m"), "victim"), list[str]()

    def body() -> int:
        try:
            sleep(5.0)
            effects.append("slept")
        finally:
            current()  # as everything does that has an effect
            effects.append("cleaned up")
        return 0

    victim.run(body)
    world.at(1.0, victim.kill)
    assert ended(world, victim) == [-9]
    assert not effects


def test_a_paused_process_goes_on_where_it_was() -> None:
    world = World(0)
    process = Process(Machine(world, "m"), "it")

    def body() -> int:
        sleep(2.0)
        return round(world.now)

    def go_on() -> None:
        process.paused = False
        process.go_on()

    process.run(body)
    world.at(1.0, setattr, process, "paused", True)
    world.at(50.0, go_on)
    assert ended(world, process) == [50]


def test_threads_wait_for_a_lock_and_for_each_other() -> None:
    world = World(0)
    process, lock, done = Process(Machine(world, "m"), "it"), Lock(), Event()

    def other() -> None:
        with lock:
            sleep(3.0)
        done.set()

    def body() -> int:
        thread = Thread(other)
        thread.start()
        sleep(1.0)
        assert not lock.acquire(timeout=1.0)
        assert not done.wait(0.5)
        with lock:
            assert world.now == pytest.approx(3.0)
        thread.join()
        return 0

    process.run(body)
    assert ended(world, process) == [0]


def test_an_exception_and_an_endless_wait_are_violations() -> None:
    world = World(0)
    process = Process(Machine(world, "m"), "it")
    process.run(lambda: 1 // 0)
    with pytest.raises(Violation, match="ZeroDivisionError"):
        ended(world, process)

    world = World(0)
    process = Process(Machine(world, "m"), "it")
    process.run(lambda: int(Event().wait()))
    with pytest.raises(Violation, match="nothing is left to happen"):
        ended(world, process)


def test_a_name_is_linked_once_and_half_a_write_stays_half() -> None:
    world = World(0)
    disk = Disk(world, 0.0)
    writer, other = (Process(Machine(world, name), name) for name in ("writer", "other"))
    writer.dies_at = 3

    def write() -> int:
        DiskPath(disk, "whole").write_bytes(b"data")
        DiskPath(disk, "half").write_bytes(b"data")
        return 0

    def make() -> int:
        source = DiskPath(disk, "source")
        source.write_bytes(b"data")
        link(source, DiskPath(disk, "name"))
        with pytest.raises(FileExistsError) as error:
            link(source, DiskPath(disk, "name"))
        return error.value.errno or 0

    writer.run(write)
    other.run(make)
    assert ended(world, writer, other) == [-9, errno.EEXIST]
    assert (disk.files["whole"], disk.files["name"]) == (b"data", b"data")
    assert disk.files.get("half", b"") == b""
