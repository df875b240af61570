"""A signal is a wish: it is noted by name, once, and handlers are only borrowed."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

import pytest

from stoker.host.signals import STOP_SIGNALS as SIGNALS
from stoker.survive.stopping import StopNow, StopRequest, listening
from waiting import until

NAMES = ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2"]


def send(name: str, wish: StopRequest) -> None:
    """Send this process a signal and wait until it has arrived."""
    os.kill(os.getpid(), signal.Signals[name])
    until(lambda: bool(wish))


@pytest.mark.parametrize("name", NAMES)
def test_a_signal_is_a_wish_with_its_name(wish: StopRequest, name: str) -> None:
    assert not wish
    send(name, wish)
    assert wish
    assert wish.reason == name


def test_the_first_reason_is_the_one_that_counts(wish: StopRequest) -> None:
    send("SIGUSR2", wish)
    send("SIGTERM", wish)
    wish.request("somebody else")
    time.sleep(0.05)
    assert wish.reason == "SIGUSR2"


def test_a_wish_needs_no_signal() -> None:
    wish = StopRequest()
    assert not wish
    assert wish.reason is None
    wish.request("the price went up")
    assert wish
    assert wish.reason == "the price went up"


def test_release_gives_the_signals_back() -> None:
    def mine(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    caught: list[int] = []
    before = {number: signal.signal(number, mine) for number in SIGNALS}
    try:
        wish = StopRequest()
        wish.listen()
        assert all(signal.getsignal(number) is not mine for number in SIGNALS)
        wish.release()
        assert all(signal.getsignal(number) is mine for number in SIGNALS)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: caught)
        assert caught == [signal.SIGTERM]
        assert not wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_releasing_what_was_never_taken_changes_nothing() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    StopRequest().release()
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize(
    ("elastic", "signals", "aside"),
    [
        (False, [], False),
        (False, ["SIGTERM"], False),
        (True, [], True),
        (True, ["SIGTERM"], True),
        (True, ["SIGUSR1"], False),
        (True, ["SIGINT"], False),
        (True, ["SIGTERM", "SIGUSR2"], False),
        (True, ["SIGUSR2", "SIGTERM"], False),
    ],
)
def test_in_an_elastic_run_sigterm_means_step_aside(
    monkeypatch: pytest.MonkeyPatch, elastic: bool, signals: list[str], aside: bool
) -> None:
    if elastic:
        monkeypatch.setenv("STOKER_ELASTIC", "1")
    wish = StopRequest()
    wish.listen()
    try:
        for name in signals:
            send(name, wish)
            time.sleep(0.05)
        assert bool(wish) == bool(signals)
        assert wish.aside == aside
    finally:
        wish.release()


def test_a_wish_from_elsewhere_is_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_ELASTIC", "1")
    wish = StopRequest()
    wish.request("the price went up")
    assert not wish.aside


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_another_thread_receives_is_heard(number: signal.Signals) -> None:
    """The kernel gives a signal to any thread; the main one may sleep in a lock without an end."""
    lock = threading.Lock()
    lock.acquire()

    def receive() -> None:
        time.sleep(0.3)  # until the main thread sleeps; a signal that comes before is heard anyway
        signal.pthread_kill(threading.get_ident(), number)

    with listening() as stop:
        thread = threading.Thread(target=receive)
        with pytest.raises(StopNow), stop.at_once():
            thread.start()
            lock.acquire()
        thread.join()
    assert stop.reason == number.name
