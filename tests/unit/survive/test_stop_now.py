"""Inside `at_once` a stop request is an exception; a time limit is a stop request."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from stoker.host.signals import STOP_SIGNALS
from stoker.survive.stopping import StopNow, StopRequest
from waiting import until


class TestAfter:
    def test_a_time_limit_requests_a_stop(self) -> None:
        stop = StopRequest()
        began = time.monotonic()
        stop.after(0.5)
        until(lambda: bool(stop))
        assert time.monotonic() - began >= 0.5
        assert stop.reason == "time limit"

    def test_no_time_left_requests_a_stop_at_once(self) -> None:
        stop = StopRequest()
        stop.after(0)
        until(lambda: bool(stop))

    def test_the_first_request_is_the_reason(self) -> None:
        stop = StopRequest()
        stop.request("SIGTERM")
        before = threading.enumerate()
        stop.after(0)
        for timer in threading.enumerate():
            if timer not in before:
                timer.join(60)
        assert stop
        assert stop.reason == "SIGTERM"

    def test_without_a_limit_there_is_no_request(self) -> None:
        assert not StopRequest()


class TestAtOnce:
    @pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
    def test_a_signal_breaks_off_what_is_being_done(
        self, stop: StopRequest, number: signal.Signals
    ) -> None:
        with pytest.raises(StopNow), stop.at_once():
            os.kill(os.getpid(), number)
            time.sleep(60)
            pytest.fail("was not broken off")
        assert stop.reason == number.name

    def test_so_does_a_request_of_another_thread(self, stop: StopRequest) -> None:
        def watch() -> None:
            time.sleep(0.2)
            stop.request("spot notice")

        thread = threading.Thread(target=watch)
        with pytest.raises(StopNow), stop.at_once():
            thread.start()
            time.sleep(60)
            pytest.fail("was not broken off")
        thread.join()
        assert stop.reason == "spot notice"

    def test_a_request_that_came_before_lets_nothing_begin(self, stop: StopRequest) -> None:
        stop.request("earlier")
        begun = False
        with pytest.raises(StopNow), stop.at_once():
            begun = True
        assert not begun

    def test_nor_does_a_time_limit_that_is_over(self, stop: StopRequest) -> None:
        stop.after(0)
        until(lambda: bool(stop))
        with pytest.raises(StopNow), stop.at_once():
            pytest.fail("was begun")
        assert stop.reason == "time limit"

    def test_without_a_request_nothing_is_interrupted(self, stop: StopRequest) -> None:
        with stop.at_once():
            time.sleep(0.05)
        assert not stop

    def test_a_crowd_of_signals_is_raised_once(self, stop: StopRequest) -> None:
        raised = 0
        try:
            with stop.at_once():
                for number in STOP_SIGNALS:
                    os.kill(os.getpid(), number)
                time.sleep(30)
        except StopNow:
            raised += 1
            time.sleep(0.05)
        assert raised == 1
        assert stop

    def test_nothing_that_catches_errors_swallows_it(self, stop: StopRequest) -> None:
        with pytest.raises(StopNow), stop.at_once():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(30)
            except Exception:
                pytest.fail("was swallowed")


class TestAfterwards:
    @pytest.mark.parametrize("broken_off", [False, True])
    def test_a_request_is_only_noted_again(self, stop: StopRequest, broken_off: bool) -> None:
        try:
            with stop.at_once():
                if broken_off:
                    raise ValueError("compiling failed")
        except ValueError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: bool(stop))
        assert stop.reason == "SIGTERM"

    def test_a_request_of_another_thread_sends_no_signal(self) -> None:
        """Nobody listens here: a signal would end this process."""
        stop = StopRequest()
        with stop.at_once():
            pass
        thread = threading.Thread(target=stop.request, args=("spot notice",))
        thread.start()
        thread.join()
        assert stop.reason == "spot notice"

    def test_the_handlers_are_those_of_before(self) -> None:
        before = [signal.getsignal(number) for number in STOP_SIGNALS]
        stop = StopRequest()
        stop.listen()
        with pytest.raises(StopNow), stop.at_once():
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(30)
        stop.release()
        assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
