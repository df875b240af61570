"""Tasks over local processes: all results, or an error with a name."""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from golden import check_golden
from samples import image_folder
from stoker.errors import BadRequest, StokerError
from stoker.fleet import launcher, workers
from stoker.fleet.workers import map_tasks
from stoker.host.limits import cgroup_cores, usable_cores, usable_memory
from stoker.host.signals import STOP_SIGNALS


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("tasks", [0, 1, 7])
def test_every_task_gives_its_result_once(workers: int, tasks: int) -> None:
    results = list(map_tasks(math.factorial, range(tasks), workers))
    assert sorted(results) == sorted(map(math.factorial, range(tasks)))


def test_several_workers_are_other_processes() -> None:
    pids = set(map_tasks(eval, ["__import__('os').getpid()"] * 8, 2))
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2


def raise_read_only(*arguments: object, **options: object) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def refusal(work: Callable[[], object]) -> str:
    with pytest.raises(BadRequest) as error:
        work()
    return str(error.value)


@pytest.mark.timeout(300)
def test_a_worker_that_is_killed_is_an_error_not_a_wait_golden() -> None:
    with pytest.raises(StokerError) as error:
        list(map_tasks(signal.raise_signal, [0, 0, signal.SIGKILL, *[0] * 20], 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers, "ProcessPoolExecutor", raise_read_only)
        patch.setattr(launcher.tempfile, "mkdtemp", raise_read_only)
        refusals = [refusal(lambda: list(map_tasks(math.factorial, range(9), 2)))]
        refusals.append(refusal(lambda: launcher.private_folder("stoker-")))
    check_golden("fleet_workers", [str(error.value), *refusals])
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_task_raises_reaches_the_caller(workers: int) -> None:
    with pytest.raises(ValueError, match="factorial"):
        list(map_tasks(math.factorial, [3, -1, 3], workers))


def test_stop_signals_to_workers_do_nothing() -> None:
    """The caller decides: schedulers signal every process of a command."""
    numbers = [number.value for number in STOP_SIGNALS]
    assert list(map_tasks(signal.raise_signal, numbers, 2)) == [None] * len(numbers)


def test_work_under_way_is_ended_where_the_caller_stops() -> None:
    """A shard may take long, and begins again with the next command."""
    results = map_tasks(time.sleep, [0.0, 3600.0, 3600.0], 2)
    next(results)
    began = time.monotonic()
    results.close()
    assert time.monotonic() - began < 60
    assert not multiprocessing.active_children()


def test_a_caller_that_stops_early_leaves_no_workers() -> None:
    results = map_tasks(math.factorial, range(20), 2)
    next(results)
    results.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("150000 100000\n", 2),
        ("100000 100000\n", 1),
        ("50000 100000\n", 1),
        ("1000 100000\n", 1),
        ("800000 100000\n", 8),
        ("200000 50000\n", 4),
    ],
)
def test_a_container_is_given_the_cores_of_its_quota(tmp_path: Path, text: str, cores: int) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cgroup_cores(str(tmp_path)) == cores


@pytest.mark.parametrize("text", ["max 100000\n", "", "nonsense\n", "max\n"])
def test_no_quota_is_no_limit(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert cgroup_cores(str(tmp_path)) >= 100_000


def test_no_cgroup_is_no_limit(tmp_path: Path) -> None:
    assert cgroup_cores(str(tmp_path)) >= 100_000


@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [("400000", "100000", 4), ("50000", "100000", 1), ("-1", "100000", 1 << 20), ("", "", 1 << 20)],
)
def test_an_older_kernel_or_cluster_writes_it_elsewhere(
    tmp_path: Path, quota: str, period: str, cores: int
) -> None:
    """Version 1 has a tree for each controller; a scheduler limits a group far down in it."""
    (tmp_path / "own").write_text("9:memory:/slurm/job_7\n3:cpu,cpuacct:/slurm/job_7\n0::/\n")
    job = tmp_path / "cpu/slurm/job_7"
    job.mkdir(parents=True)
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    (job / "cpu.cfs_quota_us").write_text(f"{quota}\n")
    (job / "cpu.cfs_period_us").write_text(f"{period}\n")
    assert cgroup_cores(str(tmp_path), str(tmp_path / "own")) == cores


@pytest.mark.parametrize(
    ("job", "root", "expected"),
    [
        ("2147483648", "9223372036854771712", 2 << 30),
        ("9223372036854771712", "9223372036854771712", 8 << 30),
        ("9223372036854771712", "1073741824", 1 << 30),
    ],
)
def test_so_it_does_with_memory(tmp_path: Path, job: str, root: str, expected: int) -> None:
    (tmp_path / "own").write_text("9:memory:/slurm/job_7\n0::/\n")
    (tmp_path / "meminfo").write_text(f"MemTotal: {8 << 20} kB\n")
    folder = tmp_path / "memory/slurm/job_7"
    folder.mkdir(parents=True)
    (folder / "memory.limit_in_bytes").write_text(job)
    (tmp_path / "memory/memory.limit_in_bytes").write_text(root)
    files = (str(tmp_path / "own"), str(tmp_path / "meminfo"))
    assert usable_memory(str(tmp_path), *files) == expected


def test_usable_cores_are_at_least_one_and_within_the_affinity() -> None:
    assert 1 <= usable_cores() <= len(os.sched_getaffinity(0))


def test_a_program_that_is_imported_by_its_own_workers_ends_with_the_reason(tmp_path: Path) -> None:
    """A worker that repeats the call would wait for its own parent."""
    image_folder(tmp_path / "photos", images=8)
    program = tmp_path / "program.py"
    program.write_text("import stoker\nstoker.pack('photos', workers=2, shard_images=4)\n")
    command = [sys.executable, str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "call it below if __name__ == '__main__':" in done.stderr
    assert "a worker process died" in done.stderr


class Stopped(Exception):
    """What the handler of a stop signal raises."""


def test_a_stop_signal_is_not_raised_inside_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """There it would leave a lock held that the pool needs to end."""
    waits, wait = [], workers.wait

    def interrupted(*arguments: Any) -> Any:
        if not waits:
            signal.raise_signal(signal.SIGTERM)
        waits.append("whole")
        return wait(*arguments)

    def stop(number: int, frame: object) -> None:
        raise Stopped

    monkeypatch.setattr(workers, "wait", interrupted)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with pytest.raises(Stopped):
            list(map_tasks(len, [[1], [2]] * 8, 2))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert waits == ["whole"]
