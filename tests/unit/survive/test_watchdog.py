"""A run that stands still says so in time, and says who holds it up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from stoker.survive import watchdog
from stoker.survive.watchdog import Standing, Watchdog, odd_one_out, stacks

AFTER_S = 0.3


def standing(
    rank: int, step: int = 7, phase: str = "data", place: int = 0, **facts: Any
) -> Standing:
    facts = {"host": f"host{rank}", "seconds": 61.0, "time": time.time(), **facts}
    return Standing(rank=rank, step=step, phase=phase, place=place, **facts)


@pytest.mark.parametrize(
    ("standings", "world", "expected"),
    [
        pytest.param([standing(0)], 1, "rank 0 on host0 is in 'data' of step 7", id="alone"),
        pytest.param(
            [standing(0, place=1, phase="exchange"), standing(1)],
            2,
            "rank 1 on host1 is in 'data' of step 7; the others are further, in exchange",
            id="one waits for data",
        ),
        pytest.param(
            [standing(0, 8), standing(1, 7, "update", 5), standing(2, 8, "forward", 2)],
            3,
            "rank 1 on host1 is in 'update' of step 7; the others are further, in data, forward",
            id="an earlier step is further behind than an earlier phase",
        ),
        pytest.param(
            [standing(1, 7, "forward", 2), standing(0, 7, "forward", 2)],
            2,
            "every rank is there: rank 1 on host1 is in 'forward' of step 7",
            id="all at the same place",
        ),
        pytest.param(
            [standing(0), standing(2)],
            3,
            "rank 1 left no sign: the machine is lost, or the process is stopped",
            id="one silent",
        ),
        pytest.param(
            [standing(2)],
            4,
            "rank 0, rank 1, rank 3 left no sign: the machine is lost, or the process is stopped",
            id="several silent",
        ),
    ],
)
def test_the_odd_one_is_named(standings: list[Standing], world: int, expected: str) -> None:
    assert odd_one_out(standings, world) == expected


class Watched:
    """A rank under watch, and all that was said about it."""

    def __init__(self, folder: Path, rank: int = 0, world: int = 1, patience: int = 99) -> None:
        self.said: list[str] = []
        self.given_up: list[str] = []
        self.folder = folder
        self.rank = rank
        self.dog = Watchdog(
            self.standing,
            folder,
            world,
            after_s=AFTER_S,
            say=self.said.append,
            give_up=self.give_up,
            patience=patience,
        )

    def standing(self, still_s: float) -> Standing:
        return standing(self.rank, phase="forward", place=2, seconds=still_s, stacks=stacks())

    def give_up(self, words: str) -> None:
        self.given_up.append(words)
        self.dog.close()

    def beat_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.dog.beat()
            time.sleep(0.02)


@pytest.fixture
def watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Watched]]:
    """Somebody who watches, quicker than in a real run."""
    monkeypatch.setattr(watchdog, "POLL_S", 0.02)
    monkeypatch.setattr(watchdog, "GATHER_S", 0.05)
    monkeypatch.setattr(watchdog, "FIRST_STEP_S", 0.6)
    begun: list[Watched] = []

    def begin(**facts: Any) -> Watched:
        begun.append(Watched(tmp_path, **facts))
        begun[-1].dog.begin()
        return begun[-1]

    yield begin
    for each in begun:
        each.dog.close()


def soon(condition: Callable[[], object], within_s: float = 10.0) -> bool:
    until = time.monotonic() + within_s
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)
    return bool(condition())


class TestStall:
    def test_it_is_told_with_the_place_of_the_stacks(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        watched.beat_for(0.2)
        assert soon(lambda: watched.said)
        assert watched.said[0] == (
            "no step for 0 s: rank 0 on host0 is in 'forward' of step 7; "
            f"stacks in {watched.folder}"
        )
        assert watched.dog.seen[0] in watched.said[0]

    def test_nothing_is_told_while_steps_come(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        watched.beat_for(1.5)
        assert watched.said == watched.dog.seen == []
        assert list(watched.folder.iterdir()) == []

    def test_the_first_step_may_take_its_time(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        began = time.monotonic()
        assert soon(lambda: watched.said)
        assert time.monotonic() - began >= 0.6

    def test_it_is_told_again_ever_later(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        watched.beat_for(0.2)
        assert soon(lambda: len(watched.dog.seen) >= 3)
        assert watched.given_up == []

    def test_nothing_more_is_told_after_the_end(self, watch: Callable[..., Watched]) -> None:
        watched = watch()
        watched.beat_for(0.1)
        watched.dog.close()
        time.sleep(0.8)
        assert watched.said == []

    def test_after_many_it_gives_up_with_the_same_words(
        self, watch: Callable[..., Watched]
    ) -> None:
        watched = watch(patience=2)
        watched.beat_for(0.2)
        assert soon(lambda: watched.given_up)
        assert len(watched.dog.seen) == 2
        assert watched.given_up == [watched.dog.seen[1]]

    def test_a_step_in_between_calms_it(self, watch: Callable[..., Watched]) -> None:
        watched = watch(patience=2)
        for _ in range(3):
            watched.beat_for(0.3)
            reports = len(watched.dog.seen)
            assert soon(lambda reports=reports: len(watched.dog.seen) > reports)
        watched.beat_for(0.1)
        assert watched.given_up == []

    def test_the_stacks_name_the_function_that_hangs(self, watch: Callable[..., Watched]) -> None:
        over = threading.Event()

        def waits_for_a_disk_that_is_gone() -> None:
            over.wait(30)

        watched = watch()
        watched.beat_for(0.1)
        hanging = threading.Thread(target=waits_for_a_disk_that_is_gone, name="reader")
        hanging.start()
        try:
            assert soon(lambda: watched.said)
        finally:
            over.set()
            hanging.join()
        left = json.loads((watched.folder / "stall-rank0.json").read_text())
        (reader,) = (lines for name, lines in left["stacks"].items() if name.startswith("reader"))
        assert "waits_for_a_disk_that_is_gone" in "".join(reader)
        assert any(name.startswith("MainThread") for name in left["stacks"])
        assert (left["rank"], left["step"], left["phase"]) == (0, 7, "forward")


class TestManyRanks:
    def test_who_is_behind_is_named_from_what_the_others_left(
        self, watch: Callable[..., Watched], tmp_path: Path
    ) -> None:
        watched = watch(world=2)
        watched.beat_for(0.2)
        late = standing(1, phase="data", time=time.time() + 60)
        (tmp_path / "stall-rank1.json").write_text(json.dumps(asdict(late)))
        assert soon(lambda: watched.said)
        assert (
            "rank 1 on host1 is in 'data' of step 7; the others are further, in forward"
        ) in watched.said[0]

    def test_what_was_left_long_ago_or_is_torn_is_no_sign(
        self, watch: Callable[..., Watched], tmp_path: Path
    ) -> None:
        (tmp_path / "stall-rank1.json").write_text(json.dumps(asdict(standing(1, time=1.0))))
        (tmp_path / "stall-rank2.json").write_text('{"rank": 2, "ti')
        watched = watch(world=3)
        watched.beat_for(0.2)
        assert soon(lambda: watched.said)
        assert "rank 1, rank 2 left no sign" in watched.said[0]

    def test_only_rank_0_speaks_and_all_leave_word(self, watch: Callable[..., Watched]) -> None:
        one, other = watch(rank=0, world=2), watch(rank=1, world=2)
        for _ in range(10):
            one.dog.beat()
            other.dog.beat()
            time.sleep(0.02)
        assert soon(lambda: one.said and other.dog.seen)
        assert other.said == []
        names = sorted(path.name for path in one.folder.iterdir())
        assert names == ["stall-rank0.json", "stall-rank1.json"]


class TestLimit:
    @pytest.fixture
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        now = [100.0]
        monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
        return now

    @pytest.mark.parametrize(
        ("paces", "limit"),
        [
            ([0.01, 0.01, 0.01], AFTER_S),
            ([2.0, 2.0, 2.0], 10.0),
            ([1.0, 2.0, 900.0], 10.0),
            ([4.0], 20.0),
            ([100.0] * 40 + [1.0] * 50, 5.0),
        ],
    )
    def test_it_is_five_times_the_usual_step(
        self, tmp_path: Path, clock: list[float], paces: list[float], limit: float
    ) -> None:
        dog = Watched(tmp_path).dog
        dog.beat()
        for pace in paces:
            clock[0] += pace
            dog.beat()
        assert dog.limit_s == pytest.approx(limit)

    def test_before_two_beats_it_is_that_of_the_first_step(
        self, tmp_path: Path, clock: list[float]
    ) -> None:
        dog = Watched(tmp_path).dog
        assert dog.limit_s == watchdog.FIRST_STEP_S
        clock[0] += 300
        dog.beat()
        assert dog.limit_s == watchdog.FIRST_STEP_S
        clock[0] += 1
        dog.beat()
        assert dog.limit_s == pytest.approx(5.0)
