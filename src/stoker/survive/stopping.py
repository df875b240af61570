"""One stop request per process, from any source: a signal, a spot notice, a time limit.

Invariants: a signal only sets a flag; the training loop checks it between steps, saves a checkpoint
and leaves. A second request changes nothing: Ctrl-C reaches a whole process group. Code that does
not check for long and has nothing to lose (packing, compiling) is interrupted at once. In an
elastic run SIGTERM comes from the launcher and means: save, you will start again with other peers.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

from stoker.errors import STEPPED_ASIDE, Interrupted
from stoker.fleet.launcher import ELASTIC
from stoker.host.signals import STOP_SIGNALS, stop_signals, unblock_stop_signals
from stoker.text import say_error

STARTING = "starting"
"""What a command does before there is anything to save."""
UNCHANGED = "nothing was changed: the same command starts again"
"""The outcome of stopping a command that only reads."""
DELIVERY_S = 0.1
"""Time for the main thread to handle a signal before the signal is sent to it again."""
REPEAT_S = 0.5
"""Pause before a request that should have ended the main thread's work is repeated."""


class StopNow(BaseException):
    """Raised in the main thread by a stop request inside `StopRequest.at_once`."""


class StopRequest:
    """Whether this process shall stop, and why. True once a stop is requested."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.notes: list[str] = []
        """Messages for the user from the threads that watch for a reason to stop."""
        self._elastic = ELASTIC in os.environ
        self._final = self._at_once = self._repeating = False
        self._before: dict[signal.Signals, Any] = {}
        self._writer = self._wakeup_before = -1
        self._signalling = threading.Lock()
        self._leave: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        return self.reason is not None

    @property
    def steps_aside(self) -> bool:
        """Whether this process stops only to start again with other peers."""
        return self._elastic and not self._final

    def request(self, reason: str) -> None:
        self._final = True
        self.reason = self.reason or reason
        if threading.current_thread() is not threading.main_thread():
            self._signal_main_thread()

    def after(self, seconds: float) -> None:
        """Request a stop after so many seconds: the time limit."""
        timer = threading.Timer(seconds, self.request, ("time limit",))
        timer.daemon = True
        timer.start()

    @contextmanager
    def at_once(self, leave: Callable[[], None] | None = None) -> Iterator[None]:
        """In this block a stop request, also an earlier one, calls `leave` and raises StopNow."""
        before = self._at_once, self._leave
        self._at_once, self._leave, self._repeating = True, leave, False
        try:
            if self:
                self._interrupt()
            yield
        finally:
            self._at_once, self._leave = before

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """A block inside `at_once` that a stop request does not leave: it waits until the end."""
        before, self._at_once = self._at_once, False
        try:
            yield
        finally:
            self._at_once = before
        if before and self:
            self._interrupt()

    def _interrupt(self, frame: FrameType | None = None) -> None:
        """Raise StopNow, unless it is on its way already, or not now: torch's C++ aborts where an
        exception ends an import of its own, and one that is raised while a block is entered or left
        passes the block by. Python drops an exception that is raised inside a finaliser. So this is
        repeated until the block has ended."""
        if stop_under_way():
            return
        if not self._repeating:
            self._repeating = True
            threading.Thread(target=self._repeat, daemon=True).start()
        if is_importing(frame) or is_between_blocks(frame):
            return
        if self._leave:
            self._leave()
        raise StopNow

    def _repeat(self) -> None:
        while self._at_once and self._before:
            time.sleep(REPEAT_S)
            self._signal_main_thread()

    def _signal_main_thread(self) -> None:
        """Make the main thread `_interrupt`, by SIGTERM: others stop an elastic run for good."""
        with self._signalling:
            if self._at_once and self._before:
                os.kill(os.getpid(), signal.SIGTERM)

    def listen(self) -> None:
        """Handle the stop signals of this process."""
        for number in stop_signals():
            self._before[number] = signal.signal(number, self._handle)
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(
            target=self._wake_main_thread, args=(reader,), name="stoker-signals", daemon=True
        ).start()
        unblock_stop_signals()

    def release(self, handler: signal.Handlers | None = None) -> None:
        """Restore the earlier signal handlers, or have this one for all stop signals."""
        # Under the lock: no thread may send a signal that is no longer handled here.
        with self._signalling:
            if not self._before:
                return
            for number, before in self._before.items():
                signal.signal(number, before if handler is None else handler)
            self._before = {}
            signal.set_wakeup_fd(self._wakeup_before, warn_on_full_buffer=False)
            os.close(self._writer)

    def _wake_main_thread(self, reader: int) -> None:
        """Send a signal that was not handled again, to the main thread. The kernel may deliver a
        signal to any thread, which does not wake a main thread that waits for a lock."""
        with os.fdopen(reader, "rb", buffering=0) as signals:
            while number := signals.read(1):
                time.sleep(DELIVERY_S)
                if self.reason is None and signal.getsignal(number[0]) == self._handle:
                    signal.pthread_kill(threading.main_thread().ident or 0, number[0])

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._elastic and number == signal.SIGTERM:
            self.reason = self.reason or "the nodes of the run change"
        else:
            self.request(signal.Signals(number).name)
        if self._at_once:
            self._interrupt(frame)


@contextmanager
def listening() -> Iterator[StopRequest]:
    """A StopRequest that handles the stop signals of this process until the block ends."""
    stop = StopRequest()
    stop.listen()
    try:
        yield stop
    finally:
        stop.release()


@contextmanager
def stoppable(command: str) -> Iterator[None]:
    """A block in which a stop request ends the command at once, until its verb listens for itself.
    After it stop signals are ignored: the process is about to end. Not where the parent has blocked
    them: they wait until the verb listens. Raises Interrupted."""
    if STOP_SIGNALS[0] in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        yield
        return
    ignored = [number for number in STOP_SIGNALS if signal.getsignal(number) == signal.SIG_IGN]
    stop = StopRequest()
    stop.listen()
    for number in ignored:  # the program that started this one wants it so
        signal.signal(number, signal.SIG_IGN)
    try:
        with stops_at_once(stop, command, "give the same command again"):
            yield
    finally:
        stop.release(signal.SIG_IGN)


@contextmanager
def stops_at_once(stop: StopRequest, activity: str, outcome: str) -> Iterator[None]:
    """Leave the block at the first stop request. Raises Interrupted with the activity that stopped,
    the reason, and the outcome: what was kept, and what the same command does next."""
    try:
        with stop.at_once():
            yield
    except StopNow as error:
        raise interrupted(stop, activity, outcome) from error


def interrupted(stop: StopRequest, activity: str, outcome: str) -> Interrupted:
    error = Interrupted(f"{activity} stopped ({stop.reason}); {outcome}")
    if stop.steps_aside:
        error.exit_code = STEPPED_ASIDE
    return error


def ends_here(
    stop: StopRequest, activity: str, outcome: str, clean_up: Callable[[], object]
) -> AbstractContextManager[None]:
    """A block in which a stop request ends the process where it stands. For code of torch that
    turns what is raised in it into other errors, or aborts."""

    def leave() -> None:
        clean_up()
        error = interrupted(stop, activity, outcome)
        say_error(error.lines)
        os._exit(error.exit_code)

    return stop.at_once(leave)


def is_importing(frame: FrameType | None) -> bool:
    """Whether a frame is part of an import."""
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None


def is_between_blocks(frame: FrameType | None) -> bool:
    """Whether a frame enters or leaves a `with` block."""
    return frame is not None and frame.f_globals.get("__name__") in (__name__, "contextlib")


def stop_under_way() -> bool:
    """Whether the interrupted code is already handling a StopNow."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, StopNow):
        error = error.__context__
    return error is not None
