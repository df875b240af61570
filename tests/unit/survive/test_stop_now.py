"""Inside `at_once` a stop request is an exception; a time limit is a stop request."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import Interrupted
from stoker.host.signals import STOP_SIGNALS
from stoker.survive.stopping import UNCHANGED, StopNow, StopRequest, stops_at_once
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


class TestLeaving:
    def test_a_signal_while_an_error_leaves_the_block_does_not_pass_it_by(
        self, stop: StopRequest
    ) -> None:
        """As where a collective breaks while a signal is on its way to each rank: C++ hears no
        signal, and the next line of Python is that which leaves the block."""
        before = signal.signal(signal.SIGVTALRM, stop._handle)
        values: list[Any] = [0] * 5_000_000
        values.append("no number")
        with pytest.raises((TypeError, Interrupted)), stops_at_once(stop, "sorting", UNCHANGED):
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.02)
            values.sort()  # hears no signal until it fails
        until(lambda: bool(stop))
        signal.signal(signal.SIGVTALRM, before)
        assert stop.reason == "SIGVTALRM"


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


class TestImports:
    def test_an_import_is_not_broken_off(
        self, stop: StopRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An exception in an import that C++ makes, as torch does, would abort the process."""
        (tmp_path / "signals_itself.py").write_text(
            "import os, signal, time\n"
            "os.kill(os.getpid(), signal.SIGTERM)\n"
            "time.sleep(0.1)\n"
            "DONE = True\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(StopNow), stop.at_once():
            import signals_itself  # type: ignore[import-not-found]

            time.sleep(60)
        assert stop.reason == "SIGTERM"
        assert signals_itself.DONE


class TestHeldBack:
    def test_a_request_waits_for_the_end_of_the_block(self, stop: StopRequest) -> None:
        done = False
        with pytest.raises(StopNow), stop.at_once(), stop.held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: bool(stop))
            done = True
        assert done

    def test_outside_of_at_once_nothing_is_raised(self, stop: StopRequest) -> None:
        with stop.held_back():
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: bool(stop))

    def test_a_block_inside_another_leaves_that_one_as_it_was(self, stop: StopRequest) -> None:
        with pytest.raises(StopNow), stop.at_once():
            with stop.at_once():
                pass
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)


STOPPABLE = """
import os, signal, sys
from stoker.survive.stopping import listening, stoppable
from stoker.errors import Interrupted
try:
    with stoppable("'stoker x'"):
        with listening() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.reason == "SIGHUP"
        os.kill(os.getpid(), signal.{name})
        sys.exit("went on")
except Interrupted as error:
    print(error)
os.kill(os.getpid(), signal.SIGTERM)  # it is about to end
"""


class TestStoppable:
    @pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: number.name)
    def test_a_command_ends_in_order_before_its_verb_listens_and_after(
        self, number: signal.Signals
    ) -> None:
        script = [sys.executable, "-c", STOPPABLE.format(name=number.name)]
        done = subprocess.run(script, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"'stoker x' stopped ({number.name}); give the same command again\n"

    def test_a_signal_that_is_ignored_from_outside_stays_so(self) -> None:
        """As SIGINT of a command in the background of a script."""
        text = """
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from stoker.survive.stopping import stoppable
with stoppable("'stoker x'"):
    os.kill(os.getpid(), signal.SIGINT)
    print("went on")
"""
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")

    def test_a_parent_that_blocks_signals_decides_itself(self) -> None:
        """They wait until the verb listens: a rank must not end before its launcher knows it."""
        text = """
import os, signal
from stoker.host.signals import block_stop_signals
from stoker.survive.stopping import stoppable
block_stop_signals()
with stoppable("'stoker x'"):
    os.kill(os.getpid(), signal.SIGTERM)
    print("went on")
"""
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "went on\n", "")


def test_torch_does_not_turn_a_stop_into_an_error_of_its_own(tmp_path: Path) -> None:
    """Code in the block that catches all exceptions, as torch does, does not see the stop."""
    script = f"""
import os, signal
from pathlib import Path
from stoker.survive.stopping import UNCHANGED, ends_here, listening, stops_at_once
with listening() as stop, stops_at_once(stop, "exporting", UNCHANGED):
    with ends_here(stop, "exporting", UNCHANGED, Path({str(tmp_path / "draft")!r}).unlink):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException:
            raise TypeError
"""
    (tmp_path / "draft").touch()
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    words = f"stoker: exporting stopped (SIGTERM); {UNCHANGED}\n"
    assert (done.returncode, done.stderr) == (75, words)
    assert not (tmp_path / "draft").exists()
