"""Workers share the GPUs of a machine. There is no GPU here: files stand in for the devices."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from grids import Plan, cell, make
from stoker.cli import work
from stoker.errors import FINISHED
from stoker.fleet.grid import local
from stoker.fleet.grid.gpus import VARIABLE, sharing_line, taken_gpus
from stoker.host.gpu import usable_gpus

UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
MIG = "MIG-GPU-8932f937/1/0"
EIGHT = [str(number) for number in range(8)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def devices(tmp_path: Path) -> str:
    """Eight files in place of the devices of eight GPUs."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in [*EIGHT, "ctl", "-uvm"]:
        (folder / f"nvidia{name}").touch()
    return str(folder)


class TestUsable:
    @pytest.mark.parametrize(
        ("chosen", "names"),
        [
            (None, EIGHT),
            ("0", ["0"]),
            ("5, 2,7", ["5", "2", "7"]),
            ("3,3,1,3", ["3", "1"]),
            (f"{UUID},1", [UUID, "1"]),
            (f"{MIG},MIG-1/2/0", [MIG, "MIG-1/2/0"]),
            ("1,-1,2", ["1"]),
            ("1,8,2", ["1"]),
            ("1,,2", ["1"]),
            ("", []),
            ("-1", []),
            ("none", []),
        ],
    )
    def test_as_cuda_reads_the_variable(
        self, devices: str, chosen: str | None, names: list[str]
    ) -> None:
        assert usable_gpus(devices, {} if chosen is None else {VARIABLE: chosen}) == names

    def test_a_machine_without_any_has_none(self, tmp_path: Path) -> None:
        assert usable_gpus(str(tmp_path), {}) == []
        assert usable_gpus(str(tmp_path), {VARIABLE: UUID}) == []

    def test_neither_torch_nor_nvml_is_loaded(self, devices: str) -> None:
        program = (
            "import sys; import stoker.fleet.grid.gpus; from stoker.host.gpu import usable_gpus\n"
            f"assert len(usable_gpus({devices!r}, {{}})) == 8\n"
            "sys.exit('torch' in sys.modules or 'pynvml' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def used(names: list[str], *counts: int) -> list[list[str]]:
    """The GPUs of the workers of some commands that run at the same time."""
    with ExitStack() as leaving:
        seats = [leaving.enter_context(taken_gpus(names, count)) for count in counts]
    return [[name for name, _ in each] for each in seats]


class TestShares:
    @pytest.mark.parametrize("count", [1, 3, 8])
    def test_no_more_workers_than_gpus_have_one_each(self, count: int) -> None:
        assert used(EIGHT, count) == [EIGHT[:count]]

    def test_eight_workers_share_two_evenly(self) -> None:
        (names,) = used([UUID, MIG], 8)
        assert Counter(names) == {UUID: 4, MIG: 4}

    def test_a_second_command_takes_the_others(self) -> None:
        assert used(EIGHT, 3, 5) == [EIGHT[:3], EIGHT[3:]]
        first, second, third = used(EIGHT, 5, 5, 6)
        assert max(Counter([*first, *second, *third]).values()) == 2

    def test_what_a_command_has_used_is_free_again(self) -> None:
        assert used(EIGHT, 8) == used(EIGHT, 8) == [EIGHT]

    def test_without_gpus_nobody_has_one(self, cache: Path) -> None:
        assert used([], 8) == [[]]
        assert not cache.exists()

    @pytest.mark.parametrize("number", [errno.ENOSYS, errno.EACCES])
    def test_without_locks_they_are_counted_here_alone(
        self, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def refuse(*given: Any) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", refuse)
        assert used(["0", "1"], 3, 0) == [["0", "1", "0"], []]


@pytest.mark.parametrize(
    ("names", "workers", "line"),
    [
        ([], 8, ""),
        (EIGHT, 8, ""),
        (["0", "1"], 8, "8 workers share 2 GPUs: up to 4 train on one GPU"),
        (["0", "1"], 3, "3 workers share 2 GPUs: up to 2 train on one GPU"),
        (["0"], 8, "8 workers share 1 GPU: up to 8 train on one GPU"),
        (
            EIGHT,
            3,
            "3 workers on 8 GPUs: a cell trains on one, so 5 stay idle unless others use them; "
            "--workers 8 uses all",
        ),
        (
            EIGHT,
            1,
            "1 worker on 8 GPUs: a cell trains on one, so 7 stay idle unless others use them; "
            "--workers 8 uses all",
        ),
        (["0"], 1, ""),
    ],
)
def test_one_line_says_what_is_shared_or_idle(names: list[str], workers: int, line: str) -> None:
    with taken_gpus(names, workers) as seats:
        assert sharing_line(names, seats) == line


def test_one_line_says_that_other_commands_use_the_same() -> None:
    with taken_gpus(EIGHT, 6), taken_gpus(EIGHT, 4) as seats:
        line = sharing_line(EIGHT, seats)
    assert line == "2 of 4 workers share a GPU with workers of other commands"


class DeadWorker:
    """A worker that was killed, or one that has finished."""

    def __init__(self, code: int) -> None:
        self._code = code

    def poll(self) -> int:
        return self._code


def test_a_worker_that_is_started_again_keeps_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def start(grid: Path, plan: str, gpu: str) -> DeadWorker:
        started.append(gpu)
        return DeadWorker(-signal.SIGKILL if started.count(gpu) < 3 else FINISHED)

    monkeypatch.setattr(local, "start", start)
    stop: Callable[[], None] = lambda: None  # noqa: E731
    assert local.run_workers(tmp_path, "plan", 3, stop, lambda: 0, ["4", "5", "6"]) == FINISHED
    assert Counter(started) == {"4": 3, "5": 3, "6": 3}


def test_real_cells_see_one_gpu_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell waits until the other two run: so three workers have one each."""
    shared = tmp_path / "seen"
    shared.mkdir()
    wait = (
        f"n=0; until [ $(ls {shared} | wc -l) = 3 ] || [ $n = 2400 ]; "
        "do n=$((n + 1)); sleep 0.05; done"
    )
    script = f"touch {shared}/$CUDA_VISIBLE_DEVICES; {wait}; echo 1 > $STOKER_CELL/draft.json"
    plan = Plan.of([cell(name, script) for name in "abc"])
    grid, digest = make(tmp_path / "grid", plan)
    monkeypatch.setattr(local, "usable_gpus", lambda: EIGHT)
    lines: list[str] = []
    workers = local.LocalWorkers(3, lines.append)
    assert workers.run(grid, digest, lambda: None) == FINISHED
    assert sorted(path.name for path in shared.iterdir()) == ["0", "1", "2"]
    assert len(lines) == 1 and "5 stay idle" in lines[0]


@pytest.mark.parametrize(
    ("names", "seen"), [(EIGHT, "1"), (["3", "6"], "3"), (["5"], None), ([], None)]
)
def test_a_worker_that_is_started_alone_takes_one_of_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], seen: str | None
) -> None:
    monkeypatch.setenv(VARIABLE, "")  # so that it is restored
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(work, "usable_gpus", lambda: names)
    plan = Plan.of([it := cell("it", 'echo \\"$CUDA_VISIBLE_DEVICES\\" > $STOKER_CELL/draft.json')])
    grid, digest = make(tmp_path / "grid", plan)
    with taken_gpus(["0"], 1):
        assert work.run([str(grid.path), "--plan", digest]) == FINISHED
    assert grid.result(it.id) == (seen or "")
