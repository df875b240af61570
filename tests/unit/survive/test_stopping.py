"""A signal is a stop request with its name; the handlers are restored afterwards."""

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

NAMES = ["SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGHUP"]


def send(name: str, stop: StopRequest) -> None:
    """Send this process a signal and wait until it has arrived."""
    os.kill(os.getpid(), signal.Signals[name])
    until(lambda: bool(stop))


@pytest.mark.parametrize("name", NAMES)
def test_a_signal_is_a_request_with_its_name(stop: StopRequest, name: str) -> None:
    assert not stop
    send(name, stop)
    assert stop
    assert stop.reason == name


def test_the_first_reason_is_the_one_that_counts(stop: StopRequest) -> None:
    send("SIGUSR2", stop)
    send("SIGTERM", stop)
    stop.request("somebody else")
    time.sleep(0.05)
    assert stop.reason == "SIGUSR2"


def test_a_request_needs_no_signal() -> None:
    stop = StopRequest()
    assert not stop
    assert stop.reason is None
    stop.request("the price went up")
    assert stop
    assert stop.reason == "the price went up"


def test_release_gives_the_signals_back() -> None:
    def mine(number: int, frame: FrameType | None) -> None:
        caught.append(number)

    caught: list[int] = []
    before = {number: signal.signal(number, mine) for number in SIGNALS}
    try:
        stop = StopRequest()
        stop.listen()
        assert all(signal.getsignal(number) is not mine for number in SIGNALS)
        stop.release()
        assert all(signal.getsignal(number) is mine for number in SIGNALS)
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: caught)
        assert caught == [signal.SIGTERM]
        assert not stop
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
    stop = StopRequest()
    stop.listen()
    try:
        for name in signals:
            send(name, stop)
            time.sleep(0.05)
        assert bool(stop) == bool(signals)
        assert stop.steps_aside == aside
    finally:
        stop.release()


def test_a_request_from_elsewhere_is_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_ELASTIC", "1")
    stop = StopRequest()
    stop.request("the price went up")
    assert not stop.steps_aside


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
