"""One stop wish, from any source.

Invariants: a signal only raises a flag; the loop looks at it between steps and leaves in order,
with a checkpoint. The same wish twice is still one wish: Ctrl-C reaches a whole process group.
Where nothing can be lost and nothing is looked at for long (packing, compiling), a wish is heard at
once.
In an elastic run SIGTERM is the launcher's: "save, you start again with other peers".
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from stoker.errors import Interrupted
from stoker.fleet.launcher import ELASTIC
from stoker.host.signals import STOP_SIGNALS, unblock_stop_signals

UNCHANGED = "nothing was changed: the same command starts again"
"""The outcome of stopping what only reads."""
HEARD_S = 0.1
"""How long the main thread may take to hear a signal before it is sent there once more."""
AGAIN_S = 0.5
"""After how long a wish that should have been heard is said again."""


class StopNow(BaseException):
    """The wish, where waiting for the next look would take too long."""


class StopRequest:
    """Whether somebody wants this process to stop, and who."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.notes: list[str] = []
        """What whoever watches for us has to say."""
        self._elastic = ELASTIC in os.environ
        self._for_good = False
        self._before: dict[signal.Signals, Any] = {}
        self._writer = -1
        self._calling = threading.Lock()
        self._at_once = False
        self._reminded = False
        self._leave: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        return self.reason is not None

    @property
    def aside(self) -> bool:
        """Whether this process, when it stops, does so only to start again with other peers."""
        return self._elastic and not self._for_good

    def request(self, reason: str) -> None:
        self._for_good = True
        self.reason = self.reason or reason
        if threading.current_thread() is not threading.main_thread():
            self._call_main_thread()

    def after(self, seconds: float) -> None:
        """Wish it when so many seconds have passed."""
        timer = threading.Timer(seconds, self.request, ("its time limit",))
        timer.daemon = True
        timer.start()

    @contextmanager
    def at_once(self, leave: Callable[[], None] | None = None) -> Iterator[None]:
        """A wish that comes in here, or came before, leaves in its own way, or raises StopNow."""
        self._at_once, self._leave, self._reminded = True, leave, False
        try:
            if self:
                self._go()
            yield
        finally:
            self._at_once, self._leave = False, None

    def _go(self) -> None:
        """Leave, unless we are leaving already. What is raised inside a finaliser is lost: so this
        is said again until it was heard."""
        if leaving():
            return
        if not self._reminded:
            self._reminded = True
            threading.Thread(target=self._remind, daemon=True).start()
        if self._leave:
            self._leave()
        raise StopNow

    def _remind(self) -> None:
        while self._at_once and self._before:
            time.sleep(AGAIN_S)
            self._call_main_thread()

    def _call_main_thread(self) -> None:
        """It hears signals only; the handler leaves there. SIGTERM adds nothing to a wish that is
        there: any other signal would end an elastic run for good."""
        with self._calling:
            if self._at_once and self._before:
                os.kill(os.getpid(), signal.SIGTERM)

    def listen(self) -> None:
        """Take the stop signals of this process."""
        for number in STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._caught)
        reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        threading.Thread(
            target=self._wake_main_thread, args=(reader,), name="stoker-signals", daemon=True
        ).start()
        unblock_stop_signals()

    def release(self) -> None:
        """Give the signals back to whoever had them."""
        # Nobody may be about to send a signal that we no longer catch.
        with self._calling:
            if not self._before:
                return
            for number, handler in self._before.items():
                signal.signal(number, handler)
            self._before = {}
            signal.set_wakeup_fd(-1)
            os.close(self._writer)

    def _wake_main_thread(self, reader: int) -> None:
        """Send a signal once more, to the main thread, where it was not heard. The kernel may give
        a signal to any thread, and a main thread that waits for a lock sleeps on."""
        with os.fdopen(reader, "rb", buffering=0) as signals:
            while number := signals.read(1):
                time.sleep(HEARD_S)
                heard = self.reason is not None
                if not heard and signal.getsignal(number[0]) == self._caught:
                    signal.pthread_kill(threading.main_thread().ident or 0, number[0])

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self._elastic and number == signal.SIGTERM:
            self.reason = self.reason or "the nodes of the run change"
        else:
            self.request(signal.Signals(number).name)
        if self._at_once:
            self._go()


@contextmanager
def listening() -> Iterator[StopRequest]:
    """A request that hears the stop signals of this process until the block ends."""
    stop = StopRequest()
    stop.listen()
    try:
        yield stop
    finally:
        stop.release()


@contextmanager
def stops_at_once(stop: StopRequest, what: str, outcome: str) -> Iterator[None]:
    """Leave the block at the first request to stop. Raises Interrupted with what was stopped, why,
    and the outcome: what was kept, and what the same command does next."""
    try:
        with stop.at_once():
            yield
    except StopNow as error:
        raise Interrupted(f"{what} stopped ({stop.reason}); {outcome}") from error


def leaving() -> bool:
    """Whether the code that was interrupted is on its way out because of a wish."""
    error = sys.exc_info()[1]
    while error is not None and not isinstance(error, StopNow):
        error = error.__context__
    return error is not None
