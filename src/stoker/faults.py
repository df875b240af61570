"""Faults on purpose: how a test makes a run fail where and when it wants.

    STOKER_FAULTS='[{"fault": "kill", "at": "manifest.json:named", "rank": 0, "count": 3}]'

Invariants: a fault is a row of data: what happens, at which place, on which rank, at which step or
at the how-manieth time the place is reached. Each row happens once a process. Without the variable
there are no rows, and reaching a place costs a call that finds an empty list.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "STOKER_FAULTS"
"""Meant for tests alone."""
LOOK_S = 0.01
"""How often a stall looks for the file that ends it."""


@dataclass
class Fault:
    """One row of the table."""

    fault: str
    at: str
    rank: int | None = None
    """None: every rank."""
    step: int | None = None
    count: int = 1
    """The how-manieth time, of those that fit the row, it happens."""
    seconds: float = 0.0
    mark: str = ""
    """A file that says that the place has been reached."""
    till: str = ""
    """A file that ends a stall as soon as it is there: `seconds` is then the longest it lasts."""
    again: bool = False
    """Every time from then on, not once."""
    until: int | None = None
    """The step from which on it happens no more."""
    every: int = 0
    """It comes and goes: so many steps with it, as many without."""

    @property
    def is_on(self) -> bool:
        if self.until is not None and _now.step >= self.until:
            return False
        return not self.every or (_now.step // self.every) % 2 == 0

    def fits(self, place: str) -> bool:
        if not self.is_on:
            return False
        if self.at != place or self.count < 1 or self.step not in (None, _now.step):
            return False
        return self.rank in (None, _now.rank)

    def comes_now(self, place: str) -> bool:
        """Count the place; whether this is the time. Threads that come together are counted one by
        one, so that the row happens once."""
        with _counting:
            if not self.fits(place):
                return False
            self.count -= 1
            if self.count >= 1:
                return False
            self.count = int(self.again)
            return True


@dataclass
class _Now:
    rank: int = 0
    step: int = 0


_now = _Now()
_counting = threading.RLock()
_faults: list[Fault] = []


def arm() -> None:
    """Read the table from the environment; called once as a process begins."""
    _now.rank = int(os.environ.get("RANK", "0"))
    _faults[:] = [Fault(**row) for row in json.loads(os.environ.get(VARIABLE, "[]"))]


def at_step(step: int) -> None:
    """Say which step the process is in."""
    _now.step = step


def reach(place: str, value: Any = None) -> Any:
    """Pass a place where a fault may be waiting; gives the value back, spoilt or as it was."""
    for fault in _faults:
        if fault.comes_now(place):
            value = HAPPENINGS[fault.fault](fault, value)
    return value


def _signal(number: signal.Signals) -> Callable[[Fault, Any], Any]:
    def send(fault: Fault, value: Any) -> Any:
        os.kill(os.getpid(), number)
        return value

    return send


def _stall(fault: Fault, value: Any) -> Any:
    if fault.mark:
        Path(fault.mark).touch()
    if not fault.till:
        time.sleep(fault.seconds)
        return value
    give_up = time.monotonic() + fault.seconds
    while not Path(fault.till).exists() and time.monotonic() < give_up:
        time.sleep(LOOK_S)
    return value


def _hog(fault: Fault, value: Any) -> Any:
    """Somebody's Python thread that never rests, and keeps the interpreter lock."""

    def spin() -> None:
        while fault.is_on:
            pass

    threading.Thread(target=spin, name="hog", daemon=True).start()
    return value


def _refuse(number: int) -> Callable[[Fault, Any], Any]:
    def fail(fault: Fault, value: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def _out_of_memory(fault: Fault, value: Any) -> Any:
    raise MemoryError(f"as if there were no memory left at {fault.at}")


HAPPENINGS: dict[str, Callable[[Fault, Any], Any]] = {
    "kill": _signal(signal.SIGKILL),
    "term": _signal(signal.SIGTERM),
    "stall": _stall,
    "hog": _hog,
    "nan": lambda fault, value: value * float("nan"),
    "huge": lambda fault, value: value * 1000,
    "oom": _out_of_memory,
    "full": _refuse(errno.ENOSPC),
    "quota": _refuse(errno.EDQUOT),
    "unable": _refuse(errno.ENOSYS),
    "forbidden": _refuse(errno.EPERM),
}
"""What can happen."""
