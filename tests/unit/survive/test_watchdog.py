"""A stalled run is reported in time, with the rank that the others wait for."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stoker.survive import watchdog
from stoker.survive.watchdog import Standing, Watchdog, bounded, describe_stall, stacks
from waiting import until

AFTER_S, LONG_S = 4.0, 5.0


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
            "rank 1 on host1 is in 'data' of step 7; the others are ahead, in exchange",
            id="one waits for data",
        ),
        pytest.param(
            [standing(0, 8), standing(1, 7, "update", 5), standing(2, 8, "forward", 2)],
            3,
            "rank 1 on host1 is in 'update' of step 7; the others are ahead, in data, forward",
            id="an earlier step is further behind than an earlier phase",
        ),
        pytest.param(
            [standing(1, 7, "forward", 2), standing(0, 7, "forward", 2)],
            2,
            "rank 1 on host1 is in 'forward' of step 7, and so are all other ranks",
            id="all at the same place",
        ),
        pytest.param(
            [standing(0), standing(2)],
            3,
            "rank 1 did not report: the machine is lost, or the process is stopped",
            id="one silent",
        ),
        pytest.param(
            [standing(2)],
            4,
            "rank 0, rank 1, rank 3 did not report: the machine is lost, or the process is stopped",
            id="several silent",
        ),
    ],
)
def test_the_rank_that_others_wait_for_is_named(
    standings: list[Standing], world: int, expected: str
) -> None:
    assert describe_stall(standings, world) == expected


class Clock:
    """Stands still until told to move; knows how often it was looked at by whoever watches."""

    def __init__(self) -> None:
        self.now = 100.0
        self.looks = 0

    def __call__(self) -> float:
        if threading.current_thread() is not threading.main_thread():
            self.looks += 1
        return self.now

    def pass_by(self, seconds: float) -> None:
        """Time passes, and whoever watches has seen that."""
        self.now += seconds
        # A look that began before may have missed it; the next one begins when that has ended.
        before = self.looks
        until(lambda: self.looks >= before + 2)


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Watched:
    """A rank under watch, and all that was said about it."""

    def __init__(
        self, folder: Path, clock: Clock, rank: int = 0, world: int = 1, patience: int = 99
    ) -> None:
        self.said: list[str] = []
        self.given_up: list[str] = []
        self.folder = folder
        self.rank = rank
        self.dog = Watchdog(
            self.standing,
            folder,
            world,
            after_s=AFTER_S,
            report=self.said.append,
            give_up=self.give_up,
            patience=patience,
            clock=clock,
        )

    def standing(self, still_s: float) -> Standing:
        return standing(self.rank, phase="forward", place=2, seconds=still_s, stacks=stacks())

    def give_up(self, message: str) -> None:
        self.given_up.append(message)
        self.dog.close()


class Pack:
    """Everybody who watches, by one clock."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        self.begun: list[Watched] = []
        self.threads: list[threading.Thread] = []

    def __call__(self, **facts: Any) -> Watched:
        before = threading.enumerate()
        self.begun.append(Watched(self.folder, self.clock, **facts))
        self.begun[-1].dog.begin()
        self.threads += [each for each in threading.enumerate() if each not in before]
        return self.begun[-1]

    def steps(self, number: int = 8, each_s: float = 0.1) -> None:
        for _ in range(number):
            self.clock.pass_by(each_s)
            for each in self.begun:
                each.dog.beat()

    def close(self) -> None:
        for each in self.begun:
            each.dog.close()
        for thread in self.threads:
            thread.join(60)


@pytest.fixture
def watch(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pack]:
    """Somebody who watches, quicker than in a real run, and who waits for a slow disk."""
    monkeypatch.setattr(watchdog, "POLL_S", 0.005)
    monkeypatch.setattr(watchdog, "GATHER_S", 0.05)
    monkeypatch.setattr(watchdog, "bounded", partial(bounded, seconds=60))
    pack = Pack(tmp_path, clock)
    yield pack
    pack.close()


class TestStall:
    def test_it_is_told_with_the_place_of_the_stacks(self, watch: Pack, clock: Clock) -> None:
        watched = watch()
        watch.steps()
        assert watched.said == []
        clock.pass_by(LONG_S)
        until(lambda: watched.said)
        assert watched.said[0] == (
            "no step for 5 s: rank 0 on host0 is in 'forward' of step 7; "
            f"stacks in {watched.folder}"
        )
        assert watched.dog.stalls[0] in watched.said[0]

    def test_nothing_is_told_while_steps_come(self, watch: Pack) -> None:
        watched = watch()
        watch.steps(50, each_s=AFTER_S / 2)
        assert watched.said == watched.dog.stalls == []
        assert list(watched.folder.iterdir()) == []

    def test_the_first_step_may_take_its_time(self, watch: Pack, clock: Clock) -> None:
        watched = watch()
        clock.pass_by(watchdog.FIRST_STEP_S - 1)
        assert watched.said == []
        clock.pass_by(2)
        until(lambda: watched.said)

    def test_it_is_told_again_ever_later(self, watch: Pack, clock: Clock) -> None:
        watched = watch()
        watch.steps()
        clock.pass_by(0.1)
        for reports in range(3):
            clock.pass_by(AFTER_S - 0.2)
            assert len(watched.dog.stalls) == reports
            clock.pass_by(0.2)
            until(lambda reports=reports: len(watched.dog.stalls) == reports + 1)
        assert watched.given_up == []

    def test_nothing_more_is_told_after_the_end(self, watch: Pack, clock: Clock) -> None:
        watched = watch()
        watch.steps()
        watch.close()
        clock.now += 100 * LONG_S
        assert not any(thread.is_alive() for thread in watch.threads)
        assert watched.said == []

    def test_after_many_it_gives_up_with_the_same_words(self, watch: Pack, clock: Clock) -> None:
        watched = watch(patience=2)
        watch.steps()
        clock.pass_by(LONG_S)
        until(lambda: watched.said)
        assert watched.given_up == []
        clock.now += LONG_S
        until(lambda: watched.given_up)
        assert len(watched.dog.stalls) == 2
        assert watched.given_up == [watched.dog.stalls[1]]

    def test_a_step_in_between_calms_it(self, watch: Pack, clock: Clock) -> None:
        watched = watch(patience=2)
        for reports in range(1, 4):
            watch.steps()
            clock.pass_by(LONG_S)
            until(lambda reports=reports: len(watched.dog.stalls) == reports)
        watch.steps()
        assert watched.given_up == []

    def test_a_step_while_words_are_gathered_calms_it_too(self, watch: Pack, clock: Clock) -> None:
        watched = watch(patience=1)
        watch.steps()

        def standing_then_going_on(still_s: float) -> Standing:
            watched.dog.beat()
            return standing(0, phase="forward", place=2, seconds=still_s)

        watched.dog._standing = standing_then_going_on
        clock.pass_by(LONG_S)
        until(lambda: watched.dog.stalls)
        clock.pass_by(0.1)
        assert watched.given_up == []

    def test_the_stacks_name_the_function_that_hangs(self, watch: Pack, clock: Clock) -> None:
        hangs, over = threading.Event(), threading.Event()

        def waits_for_a_disk_that_is_gone() -> None:
            hangs.set()
            over.wait(300)

        watched = watch()
        watch.steps()
        hanging = threading.Thread(target=waits_for_a_disk_that_is_gone, name="reader")
        hanging.start()
        try:
            assert hangs.wait(60)
            clock.pass_by(LONG_S)
            until(lambda: watched.said)
        finally:
            over.set()
            hanging.join()
        left = json.loads((watched.folder / "stall-rank0.json").read_text())
        (reader,) = (lines for name, lines in left["stacks"].items() if name.startswith("reader"))
        assert "waits_for_a_disk_that_is_gone" in "".join(reader)
        assert any(name.startswith("MainThread") for name in left["stacks"])
        assert (left["rank"], left["step"], left["phase"]) == (0, 7, "forward")


class TestLongWork:
    """Compiling at a phase change takes as long as the first step of a run."""

    def test_it_may_take_as_long_as_a_first_step(self, watch: Pack, clock: Clock) -> None:
        watched = watch(patience=1)
        watch.steps()
        with watched.dog.long_work():
            clock.pass_by(watchdog.FIRST_STEP_S - 1)
            assert watched.said == watched.given_up == []
        watch.steps()
        clock.pass_by(AFTER_S - 0.2)
        assert watched.said == watched.given_up == []

    def test_a_hang_in_it_is_reported_after_that(self, watch: Pack, clock: Clock) -> None:
        watched = watch(patience=1)
        watch.steps()
        with watched.dog.long_work():
            clock.pass_by(watchdog.FIRST_STEP_S + 1)
            until(lambda: watched.given_up)

    def test_the_usual_limit_counts_from_its_end(self, watch: Pack, clock: Clock) -> None:
        watched = watch()
        watch.steps()
        with watched.dog.long_work():
            clock.pass_by(10 * LONG_S)
        clock.pass_by(AFTER_S - 0.1)
        assert watched.said == []
        clock.pass_by(0.2)
        until(lambda: watched.said)

    def test_an_error_in_it_ends_it(self, watch: Pack, clock: Clock) -> None:
        watched = watch()
        watch.steps()
        with pytest.raises(MemoryError), watched.dog.long_work():
            raise MemoryError
        assert watched.dog.limit_s == AFTER_S


class TestManyRanks:
    def test_who_is_behind_is_named_from_what_the_others_left(
        self, watch: Pack, clock: Clock, tmp_path: Path
    ) -> None:
        watched = watch(world=2)
        watch.steps()
        late = standing(1, phase="data", time=time.time() + 600)
        (tmp_path / "stall-rank1.json").write_text(json.dumps(asdict(late)))
        clock.pass_by(LONG_S)
        until(lambda: watched.said)
        assert (
            "rank 1 on host1 is in 'data' of step 7; the others are ahead, in forward"
        ) in watched.said[0]

    def test_what_was_left_long_ago_or_is_torn_is_no_sign(
        self, watch: Pack, clock: Clock, tmp_path: Path
    ) -> None:
        (tmp_path / "stall-rank1.json").write_text(json.dumps(asdict(standing(1, time=1.0))))
        (tmp_path / "stall-rank2.json").write_text('{"rank": 2, "ti')
        watched = watch(world=3)
        watch.steps()
        clock.pass_by(LONG_S)
        until(lambda: watched.said)
        assert "rank 1, rank 2 did not report" in watched.said[0]

    def test_only_rank_0_speaks_and_all_leave_word(self, watch: Pack, clock: Clock) -> None:
        one, other = watch(rank=0, world=2), watch(rank=1, world=2)
        watch.steps()
        clock.now += LONG_S
        until(lambda: one.said and other.dog.stalls)
        assert other.said == []
        names = sorted(path.name for path in one.folder.iterdir())
        assert names == ["stall-rank0.json", "stall-rank1.json"]


class TestLimit:
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
        self, tmp_path: Path, clock: Clock, paces: list[float], limit: float
    ) -> None:
        dog = Watched(tmp_path, clock).dog
        dog.beat()
        for pace in paces:
            clock.now += pace
            dog.beat()
        assert dog.limit_s == pytest.approx(limit)

    def test_before_two_beats_it_is_that_of_the_first_step(
        self, tmp_path: Path, clock: Clock
    ) -> None:
        dog = Watched(tmp_path, clock).dog
        assert dog.limit_s == watchdog.FIRST_STEP_S
        clock.now += 300
        dog.beat()
        assert dog.limit_s == watchdog.FIRST_STEP_S
        clock.now += 1
        dog.beat()
        assert dog.limit_s == pytest.approx(5.0)
