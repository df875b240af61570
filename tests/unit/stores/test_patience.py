"""Tries are spread, shared by the requests of a client, reported, and end with a stop."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable

import pytest

from stoker.stores import patience
from stoker.stores.patience import FIRST_S, LONGEST_S, Pace, Patience, Stopped, answer_to


class Clock:
    """The time of the module, which moves only where something waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.waits: list[float] = []
        monkeypatch.setattr(patience.time, "monotonic", lambda: self.now)

    def stopped(self) -> threading.Event:
        """An event that is never set; waiting for it takes no time."""
        event = threading.Event()

        def wait(timeout: float | None = None) -> bool:
            self.waits.append(timeout or 0.0)
            self.now += timeout or 0.0
            return False

        event.wait = wait  # type: ignore[method-assign]
        return event


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_waits_grow_and_are_drawn_at_random(clock: Clock) -> None:
    tries = Patience(1000, clock.stopped())
    for _ in range(12):
        clock.now += 0.01
        tries.begin_try()
        clock.now += 0.01
        assert tries.may_try_again("it fails")
    expected_s = FIRST_S
    for wait_s in clock.waits:
        assert 0.5 * expected_s - 0.1 <= wait_s <= expected_s
        expected_s = min(2 * expected_s, LONGEST_S)
    assert (
        len(
            {
                round(wait_s / longest, 6)
                for wait_s, longest in zip(clock.waits[-5:], [LONGEST_S] * 5, strict=True)
            }
        )
        > 1
    )


def test_the_last_try_is_at_the_end_of_the_time(clock: Clock) -> None:
    tries = Patience(3, clock.stopped())
    while tries.may_try_again("it fails"):
        tries.begin_try()
    assert tries.failing_s == pytest.approx(3)
    assert tries.failures > 3


def test_progress_starts_the_time_again(clock: Clock) -> None:
    tries = Patience(3, clock.stopped())
    for _ in range(20):
        clock.now += 2
        assert tries.may_try_again("it fails")
        tries.progress()


def test_requests_of_a_client_share_their_waits(clock: Clock) -> None:
    pace = Pace()
    many = [Patience(100, clock.stopped(), pace=pace) for _ in range(12)]
    for tries in many:
        tries.begin_try()
    assert clock.waits == []
    assert pace.pause_s == 0
    for tries in many:
        tries.may_try_again("it fails")
    assert 0 < pace.pause_s <= FIRST_S  # twelve failures at the same time count once
    Patience(100, clock.stopped(), pace=pace).begin_try()
    assert clock.waits[-1] >= 0.5 * FIRST_S  # a request that has not failed holds back too


def test_success_makes_the_wait_shorter(clock: Clock) -> None:
    pace = Pace()
    for _ in range(4):
        pace.failed(clock.now)
        clock.now += 100
    for _ in range(4):
        pace.succeeded()
    clock.now -= 100
    assert pace.pause_s == 0


def test_a_message_comes_after_some_seconds_and_not_often(clock: Clock) -> None:
    messages: list[str] = []
    tries = Patience(300, clock.stopped(), messages.append)
    tries.begin_try()
    while tries.may_try_again("s3://b/set: the server asks for fewer requests (SlowDown)"):
        tries.begin_try()
    assert messages[0].startswith("s3://b/set: the server asks for fewer requests (SlowDown); ")
    assert messages[0].endswith(" s")
    assert 5 <= len(messages) <= 10


def test_a_client_tells_once_for_all_its_requests(clock: Clock) -> None:
    messages: list[str] = []
    pace = Pace()
    many = [Patience(300, clock.stopped(), messages.append, pace) for _ in range(8)]
    clock.now += 6
    for tries in many:
        tries.may_try_again("it fails")
    assert len(messages) == 1


def test_a_stop_ends_a_wait() -> None:
    stopped = threading.Event()
    tries = Patience(300, stopped)
    stopped.set()
    for call in (tries.require_going, tries.begin_try):
        with pytest.raises(Stopped):
            call()


def test_an_answer_or_an_error_reaches_the_caller() -> None:
    assert answer_to(lambda: 7, threading.Event()) == 7

    def fail() -> None:
        raise TimeoutError("late")

    with pytest.raises(TimeoutError, match="late"):
        answer_to(fail, threading.Event())


def test_a_stop_leaves_a_call_behind_that_hangs() -> None:
    hang, begun, stopped = threading.Event(), threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        hang.wait(60)

    threading.Thread(target=lambda: (begun.wait(60), stopped.set()), daemon=True).start()
    began = time.monotonic()
    try:
        with pytest.raises(Stopped):
            answer_to(call, stopped)
        assert time.monotonic() - began < 30
    finally:
        hang.set()


def test_calls_at_the_same_time_do_not_wait_for_each_other() -> None:
    meeting, answers = threading.Barrier(8, timeout=60), list[int]()

    def ask(number: int) -> None:
        answers.append(answer_to(lambda: (meeting.wait(), number)[1], threading.Event()))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(answers) == list(range(8))


def in_child(call: Callable[[], int]) -> None:
    raise SystemExit(call())


def test_a_forked_process_has_threads_of_its_own() -> None:
    assert answer_to(lambda: 1, threading.Event()) == 1
    child = multiprocessing.get_context("fork").Process(
        target=in_child, args=(lambda: answer_to(lambda: 42, threading.Event()),)
    )
    child.start()
    child.join(60)
    assert child.exitcode == 42
