"""A fault happens where, when and as often as its row says, and nowhere without one."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from stoker import faults
from stoker.faults import VARIABLE, at_step, reach
from waiting import until

Arm = Callable[..., None]
FULL = {"fault": "full", "at": "here"}


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Arm]:
    """Act as a new process of a rank, with these rows in its environment."""

    def begin(*rows: dict[str, Any], rank: int = 0) -> None:
        monkeypatch.setenv(VARIABLE, json.dumps(rows))
        monkeypatch.setenv("RANK", str(rank))
        at_step(0)
        faults.arm()

    yield begin
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("RANK", raising=False)
    at_step(0)
    faults.arm()


def test_a_fault_of_one_process_in_a_row_happens_to_the_first(arm: Arm, tmp_path: Path) -> None:
    row = {**FULL, "once": str(tmp_path / "happened"), "count": 2}
    arm(row)
    assert [happens() for _ in range(3)] == [False, True, False]
    arm(row)
    assert [happens() for _ in range(3)] == [False] * 3


def test_a_place_is_armed_where_a_row_names_it(arm: Arm) -> None:
    assert not faults.is_armed("here")
    arm(FULL)
    assert faults.is_armed("here")
    assert not faults.is_armed("there")


def children() -> set[str]:
    """The process ids of our children."""
    pids: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # a thread that has ended
            pids |= set((task / "children").read_text().split())
    return pids


def happens(place: str = "here") -> bool:
    try:
        reach(place)
    except OSError:
        return True
    return False


class TestWhere:
    def test_nothing_happens_without_the_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(VARIABLE, raising=False)
        faults.arm()
        value = object()
        assert reach("here", value) is value

    def test_it_happens_at_its_place_alone(self, arm: Arm) -> None:
        arm(FULL)
        assert [happens(place) for place in ("there", "here:later", "", "here")] == [0, 0, 0, 1]

    @pytest.mark.parametrize(
        ("wanted", "rank", "expected"), [(None, 0, 1), (None, 3, 1), (3, 3, 1), (0, 3, 0)]
    )
    def test_it_happens_on_its_rank_or_on_all(
        self, arm: Arm, wanted: int | None, rank: int, expected: bool
    ) -> None:
        arm({**FULL, "rank": wanted}, rank=rank)
        assert happens() == expected

    def test_a_process_without_a_rank_is_rank_0(
        self, arm: Arm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arm({**FULL, "rank": 0}, rank=1)
        monkeypatch.delenv("RANK")
        faults.arm()
        assert happens()

    def test_it_happens_at_its_step(self, arm: Arm) -> None:
        arm({**FULL, "step": 2})
        happened = []
        for step in (0, 1, 2, 2, 3):
            at_step(step)
            happened.append(happens())
        assert happened == [0, 0, 1, 0, 0]

    def test_without_a_step_it_happens_at_any(self, arm: Arm) -> None:
        arm(FULL)
        at_step(77)
        assert happens()


class TestHowOften:
    @pytest.mark.parametrize(
        ("row", "expected"),
        [
            ({}, [1, 0, 0, 0, 0]),
            ({"count": 3}, [0, 0, 1, 0, 0]),
            ({"again": True}, [1, 1, 1, 1, 1]),
            ({"count": 3, "again": True}, [0, 0, 1, 1, 1]),
        ],
    )
    def test_a_row_counts_and_happens_once_or_from_then_on(
        self, arm: Arm, row: dict[str, Any], expected: list[bool]
    ) -> None:
        arm({**FULL, **row})
        assert [happens() for _ in range(5)] == expected

    def test_only_times_that_fit_the_row_are_counted(self, arm: Arm) -> None:
        arm({**FULL, "step": 5, "count": 2})
        assert not any(happens() for _ in range(9))
        at_step(5)
        assert [happens(), happens("there"), happens()] == [0, 0, 1]

    def test_a_new_process_counts_from_zero(self, arm: Arm) -> None:
        for _ in range(2):
            arm(FULL)
            assert [happens(), happens()] == [1, 0]

    def test_nothing_happens_from_a_step_on(self, arm: Arm) -> None:
        arm({**FULL, "again": True, "until": 2})
        happened = []
        for step in range(4):
            faults.at_step(step)
            happened.append(happens())
        assert happened == [1, 1, 0, 0]

    def test_each_row_counts_for_itself(self, arm: Arm) -> None:
        arm({**FULL, "count": 2}, {**FULL, "at": "there"})
        assert [happens(), happens("there"), happens()] == [0, 1, 1]


class TestWhat:
    @pytest.mark.parametrize(
        ("fault", "number"),
        [
            ("full", errno.ENOSPC),
            ("quota", errno.EDQUOT),
            ("unable", errno.ENOSYS),
            ("forbidden", errno.EPERM),
        ],
    )
    def test_a_refusal_looks_like_that_of_the_system(
        self, arm: Arm, fault: str, number: int
    ) -> None:
        arm({"fault": fault, "at": "here"})
        with pytest.raises(OSError, match=os.strerror(number)) as refusal:
            reach("here")
        assert refusal.value.errno == number

    def test_memory_runs_out_with_the_place_named(self, arm: Arm) -> None:
        arm({"fault": "oom", "at": "forward"})
        with pytest.raises(MemoryError, match="forward"):
            reach("forward")

    def test_without_a_gpu_exhausted_memory_is_the_hosts(self, arm: Arm) -> None:
        arm({"fault": "exhaust", "at": "forward"})
        with pytest.raises(MemoryError, match="forward"):
            reach("forward")

    def test_memory_of_a_gpu_is_allocated_until_pytorch_refuses(
        self, arm: Arm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch

        blocks = iter([1, 2, 3])

        def empty(size: int, **kind: object) -> int:
            if (block := next(blocks, None)) is None:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return block

        arm({"fault": "exhaust", "at": "forward"})
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch, "empty", empty)
        with pytest.raises(torch.OutOfMemoryError):
            reach("forward")
        assert next(blocks, None) is None

    def test_a_value_is_spoilt_once(self, arm: Arm) -> None:
        arm({"fault": "nan", "at": "here", "count": 2})
        values = [reach("here", 2.5) for _ in range(3)]
        assert values[0] == values[2] == 2.5
        assert math.isnan(values[1])

    def test_a_stall_takes_its_time_says_so_and_gives_the_value_back(
        self, arm: Arm, tmp_path: Path
    ) -> None:
        mark = tmp_path / "stalled"
        arm({"fault": "stall", "at": "here", "seconds": 0.2, "mark": str(mark)})
        began = time.monotonic()
        assert reach("here", "value") == "value"
        assert time.monotonic() - began >= 0.2
        assert mark.exists()

    def test_a_stall_needs_no_mark(self, arm: Arm) -> None:
        arm({"fault": "stall", "at": "here"})
        assert reach("here", "value") == "value"

    def test_a_stall_ends_with_its_file(self, arm: Arm, tmp_path: Path) -> None:
        mark, till = tmp_path / "stalled", tmp_path / "enough"
        arm({"fault": "stall", "at": "here", "seconds": 600, "mark": str(mark), "till": str(till)})
        thread = threading.Thread(target=reach, args=("here",), daemon=True)
        thread.start()
        until(mark.exists)
        assert thread.is_alive()
        till.touch()
        until(lambda: not thread.is_alive())

    def test_a_stall_whose_file_never_comes_ends_all_the_same(
        self, arm: Arm, tmp_path: Path
    ) -> None:
        arm({"fault": "stall", "at": "here", "seconds": 0.05, "till": str(tmp_path / "never")})
        assert reach("here", "value") == "value"

    def test_term_is_the_signal(self, arm: Arm) -> None:
        caught: list[int] = []

        def note(number: int, frame: FrameType | None) -> None:
            caught.append(number)

        before = signal.signal(signal.SIGTERM, note)
        try:
            arm({"fault": "term", "at": "here"})
            assert reach("here", "value") == "value"
            until(lambda: caught)
        finally:
            signal.signal(signal.SIGTERM, before)
        assert caught == [signal.SIGTERM]

    def test_huge_spoils_a_value_but_leaves_it_a_number(self, arm: Arm) -> None:
        arm({"fault": "huge", "at": "here"})
        assert [faults.reach("here", 2.0), faults.reach("here", 2.0)] == [2000.0, 2.0]

    def test_a_hog_spins_until_its_step(self, arm: Arm) -> None:
        arm({"fault": "hog", "at": "here", "until": 3})
        assert reach("here", "value") == "value"
        (hog,) = [thread for thread in threading.enumerate() if thread.name == "hog"]
        assert hog.is_alive()
        faults.at_step(3)
        hog.join(60)
        assert not hog.is_alive()

    @pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
    def test_neighbours_are_busy_while_the_fault_is_on(self, arm: Arm) -> None:
        arm({"fault": "neighbours", "at": "here", "every": 2, "processes": 2})
        before = children()
        for step in (0, 4):
            at_step(step)
            assert reach("here", "value") == "value"
            reach("here")
            until(lambda: len(children() - before) == 2)
            at_step(step + 2)
            reach("here")
            until(lambda: children() == before)

    def test_every_action_is_tested(self) -> None:
        # "kill" is in tests/chaos/test_kill_fault.py, "abort" in tests/chaos/faults.toml.
        tried = {"kill", "abort", "term", "stall", "nan", "huge", "oom", "full", "quota", "unable"}
        assert set(faults.ACTIONS) == {*tried, "exhaust", "forbidden", "hog", "neighbours"}


def test_passing_a_place_costs_next_to_nothing(arm: Arm) -> None:
    arm()
    turns, quickest = 2000, math.inf
    for _ in range(50):
        began = time.thread_time()
        for _ in range(turns):
            reach("here")
        quickest = min(quickest, (time.thread_time() - began) / turns)
    assert quickest < 3e-6
