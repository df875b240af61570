"""Where nobody looks for long, a wish is an exception; a time limit is a wish like any other."""

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
    def test_the_wish_comes_when_the_time_is_over(self) -> None:
        wish = StopRequest()
        began = time.monotonic()
        wish.after(0.5)
        until(lambda: bool(wish))
        assert time.monotonic() - began >= 0.5
        assert wish.reason == "its time limit"

    def test_no_time_left_is_a_wish_at_once(self) -> None:
        wish = StopRequest()
        wish.after(0)
        until(lambda: bool(wish))

    def test_who_wished_before_is_the_reason(self) -> None:
        wish = StopRequest()
        wish.request("SIGTERM")
        before = threading.enumerate()
        wish.after(0)
        for timer in threading.enumerate():
            if timer not in before:
                timer.join(60)
        assert wish
        assert wish.reason == "SIGTERM"

    def test_without_a_limit_there_is_no_wish(self) -> None:
        assert not StopRequest()


class TestAtOnce:
    @pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
    def test_a_signal_breaks_off_what_is_being_done(
        self, wish: StopRequest, number: signal.Signals
    ) -> None:
        with pytest.raises(StopNow), wish.at_once():
            os.kill(os.getpid(), number)
            time.sleep(60)
            pytest.fail("was not broken off")
        assert wish.reason == number.name

    def test_so_does_a_wish_of_another_thread(self, wish: StopRequest) -> None:
        def watch() -> None:
            time.sleep(0.2)
            wish.request("spot notice")

        thread = threading.Thread(target=watch)
        with pytest.raises(StopNow), wish.at_once():
            thread.start()
            time.sleep(60)
            pytest.fail("was not broken off")
        thread.join()
        assert wish.reason == "spot notice"

    def test_a_wish_that_came_before_lets_nothing_begin(self, wish: StopRequest) -> None:
        wish.request("earlier")
        begun = False
        with pytest.raises(StopNow), wish.at_once():
            begun = True
        assert not begun

    def test_nor_does_a_time_limit_that_is_over(self, wish: StopRequest) -> None:
        wish.after(0)
        until(lambda: bool(wish))
        with pytest.raises(StopNow), wish.at_once():
            pytest.fail("was begun")
        assert wish.reason == "its time limit"

    def test_nobody_wishing_nothing_is_broken_off(self, wish: StopRequest) -> None:
        with wish.at_once():
            time.sleep(0.05)
        assert not wish

    def test_a_crowd_of_signals_is_raised_once(self, wish: StopRequest) -> None:
        raised = 0
        try:
            with wish.at_once():
                for number in STOP_SIGNALS:
                    os.kill(os.getpid(), number)
                time.sleep(30)
        except StopNow:
            raised += 1
            time.sleep(0.05)
        assert raised == 1
        assert wish

    def test_nothing_that_catches_errors_swallows_it(self, wish: StopRequest) -> None:
        with pytest.raises(StopNow), wish.at_once():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(30)
            except Exception:
                pytest.fail("was swallowed")


class TestAfterwards:
    @pytest.mark.parametrize("broken_off", [False, True])
    def test_a_wish_is_only_noted_again(self, wish: StopRequest, broken_off: bool) -> None:
        try:
            with wish.at_once():
                if broken_off:
                    raise ValueError("compiling failed")
        except ValueError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        until(lambda: bool(wish))
        assert wish.reason == "SIGTERM"

    def test_a_wish_of_another_thread_sends_no_signal(self) -> None:
        """Nobody listens here: a signal would end this process."""
        wish = StopRequest()
        with wish.at_once():
            pass
        thread = threading.Thread(target=wish.request, args=("spot notice",))
        thread.start()
        thread.join()
        assert wish.reason == "spot notice"

    def test_the_handlers_are_those_of_before(self) -> None:
        before = [signal.getsignal(number) for number in STOP_SIGNALS]
        wish = StopRequest()
        wish.listen()
        with pytest.raises(StopNow), wish.at_once():
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(30)
        wish.release()
        assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
