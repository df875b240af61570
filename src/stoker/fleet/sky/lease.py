"""The lease of a rented machine: it ends the machine, whatever becomes of training.

    training ends or is killed  -> SkyPilot has `after_s` to end the machine, then the lease does
    no progress for too long    -> training is stopped (it saves if it can), then the same
    the hours are used up       -> the same

Invariants: the lease runs in a process and a session of its own, and needs neither training nor the
disk of the run to answer: a read that hangs counts as no progress. It ends only when the machine is
gone, or when a later lease of this machine has taken over. The commands that end the machine are
tried in turn, again and again, and the state is read back where there is a command for that.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stoker.text import clock as duration
from stoker.text import one_line

POLL_S = 5.0
READ_S = 10.0
"""Seconds for one look at the run; a disk may hang for ever."""
COMMAND_S = 120.0
TRIES = 3
"""Times that a command is tried before the next one has its turn."""
GONE_STATES = ("terminated", "deleted", "gone", "not-found")
"""What a state command prints of a machine that costs nothing more. A stopped one has a disk."""
SLOWEST_S = 600.0
"""Largest pause between two tries."""

Value = TypeVar("Value")
ENDED, STALLED, USED_UP, REPLACED = "ended", "stalled", "used up", "replaced"


@dataclass(frozen=True)
class Pulse:
    """How far training is."""

    mark: tuple[object, ...]
    """Another value is progress."""
    text: str
    """Such as "step 120"."""
    allowed_s: float = 0.0
    """Seconds without progress that are usual here."""


@dataclass(frozen=True)
class LeaseTerms:
    """How long things may take, in seconds."""

    left_s: float
    """What is left of the lease's hours."""
    stall_s: float
    after_s: float
    grace_s: float = 120.0
    """Between asking training to stop and killing it."""
    pause_s: float = 60.0
    """After a command that ends the machine; grows with each try."""

    @property
    def poll_s(self) -> float:
        return max(0.05, min(POLL_S, self.stall_s / 20))


class Training(Protocol):
    """The processes of a job, seen from outside."""

    @property
    def is_alive(self) -> bool: ...
    def ask_to_stop(self) -> None: ...
    def kill_below(self) -> None: ...
    def kill(self) -> None: ...


class LeaseClock(Protocol):
    def now(self) -> float: ...
    def wait(self, seconds: float) -> None: ...


class BoundedRead(Generic[Value]):
    """Calls a function in a thread of its own. While a call hangs, its last result stands."""

    def __init__(self, function: Callable[[], Value | None], seconds: float = READ_S) -> None:
        self._function, self._seconds = function, seconds
        self._thread: threading.Thread | None = None
        self.latest: Value | None = None

    def __call__(self) -> Value | None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()
        self._thread.join(self._seconds)
        return self.latest

    def _read(self) -> None:
        try:
            self.latest = self._function() or self.latest
        except Exception:  # a damaged run must not end the lease
            return


def run_command(words: Sequence[str]) -> tuple[int, str]:
    """The exit code of a command and the last line that it printed. Never raises."""
    try:
        done = subprocess.run(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_S,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return 127, one_line(str(error))
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    return done.returncode, one_line(lines[-1]) if lines else ""


@dataclass
class MachineLease:
    """The lease, with what it watches and what it calls."""

    terms: LeaseTerms
    training: Training
    pulse: Callable[[], Pulse | None]
    ends: Sequence[Sequence[str]]
    """Commands that end the machine, in the order in which they are tried."""
    clock: LeaseClock
    log: Callable[[str], None]
    state: Sequence[str] = ()
    """A command that prints the machine's state; empty: the machine ends the lease with itself."""
    is_newest: Callable[[], bool] = lambda: True
    decided: Callable[[str], None] = lambda why: None
    """Called with the reason, before training is stopped."""
    call: Callable[[Sequence[str]], tuple[int, str]] = run_command

    def run(self) -> str:
        """Watch until the machine has to end, and end it. Returns why, when it is gone."""
        why = self.watch()
        self.decided(why)
        if why in (STALLED, USED_UP):
            self.stop_training()
        if why == REPLACED or not self.leave_to_owner():
            self.log("a later lease of this machine has taken over")
            return REPLACED
        self.end_machine()
        return why

    def watch(self) -> str:
        """Wait until training has ended, stalls, or the lease is used up."""
        began = moved = self.clock.now()
        mark: tuple[object, ...] = ()
        while True:
            pulse, now = self.pulse(), self.clock.now()
            if pulse and pulse.mark != mark:
                mark, moved = pulse.mark, now
            where = f" at {pulse.text}" if pulse else ""
            allowed_s = max(self.terms.stall_s, pulse.allowed_s if pulse else 0.0)
            if not self.is_newest():
                return REPLACED
            if not self.training.is_alive:
                self.log(f"the job has ended{where}")
                return ENDED
            if now - began >= self.terms.left_s:
                self.log(f"the hours of the lease are used up{where}")
                return USED_UP
            if now - moved >= allowed_s:
                self.log(f"no progress for {duration(now - moved)}{where}")
                return STALLED
            self.clock.wait(self.terms.poll_s)

    def stop_training(self) -> None:
        """Ask training to stop, which saves; kill it where it does not."""
        self.log("training is asked to stop")
        self.training.ask_to_stop()
        if not self.ends_within(self.terms.grace_s):
            self.log("training did not stop: it is killed")
            self.training.kill_below()
            # The shell has a last line to run, which tells SkyPilot how it ended.
            if not self.ends_within(self.terms.grace_s):
                self.training.kill()

    def ends_within(self, seconds: float) -> bool:
        limit = self.clock.now() + seconds
        while self.training.is_alive and self.clock.now() < limit:
            self.clock.wait(min(self.terms.poll_s, 1.0))
        return not self.training.is_alive

    def leave_to_owner(self) -> bool:
        """Give SkyPilot the time to end the machine in its own way; False if a later lease came."""
        self.log(f"SkyPilot has {duration(self.terms.after_s)} to end this machine")
        limit = self.clock.now() + self.terms.after_s
        while self.clock.now() < limit and self.is_newest():
            self.clock.wait(min(self.terms.poll_s, self.terms.after_s))
        return self.is_newest()

    def end_machine(self) -> None:
        """Call the commands that end the machine until it is gone."""
        number = 0
        while True:
            words = self.ends[number // TRIES % len(self.ends)]
            code, text = self.call(words)
            name = one_line(" ".join(words))
            self.log(f"end this machine ({name}): exit code {code}{': ' * bool(text)}{text}")
            pause = min(self.terms.pause_s * 2 ** min(number, 10), SLOWEST_S)
            if self.is_gone_within(pause):
                self.log("this machine is gone")
                return
            number += 1

    def is_gone_within(self, seconds: float) -> bool:
        """Read the state back for so long; False where it does not say that the machine is gone."""
        limit, last = self.clock.now() + seconds, ""
        while True:
            if self.state:
                code, text = self.call(self.state)
                word = text.strip().lower()
                if code == 0 and word in GONE_STATES:
                    return True
                if word != last:
                    last = word
                    self.log(f"its state is '{word or f'unknown, exit code {code}'}'")
            if self.clock.now() >= limit:
                return False
            self.clock.wait(min(POLL_S, max(seconds / 4, 0.05)))
