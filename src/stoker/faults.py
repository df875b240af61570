"""Fault injection: a test makes a run fail at a chosen place and time.

    STOKER_FAULTS='[{"fault": "kill", "at": "manifest.json:named", "rank": 0, "count": 3}]'

Invariants: a fault is a row of data: what happens, at which place in the code, on which rank, and
at which step or the nth time that the place is reached. A row happens once per process, unless it
says `again`. Without the variable there are no rows, and `reach` only loops over an empty list.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "STOKER_FAULTS"
POLL_S = 0.01
"""Seconds between two checks for the file that ends a stall."""


@dataclass
class Fault:
    """One row of `STOKER_FAULTS`."""

    fault: str
    at: str
    rank: int | None = None
    """None: on every rank."""
    step: int | None = None
    count: int = 1
    """It happens the nth time that the row matches, counting from 1."""
    seconds: float = 0.0
    mark: str = ""
    """A file that a stall creates when it starts."""
    till: str = ""
    """A file that ends a stall as soon as it exists; `seconds` is then the longest time."""
    again: bool = False
    """It happens every time from then on, not once."""
    until: int | None = None
    """It no longer happens from this step on."""
    every: int = 0
    """It alternates: this many steps with the fault, then as many without."""
    once: str = ""
    """A file that is created when it happens; where that file exists it does not happen: so it
    happens to one of several processes in a row."""
    processes: int = 0
    """Busy processes of the fault `neighbours`."""

    @property
    def is_on(self) -> bool:
        if self.until is not None and _now.step >= self.until:
            return False
        return not self.every or (_now.step // self.every) % 2 == 0

    def is_due(self, place: str) -> bool:
        """Count this visit of the place; True, for one thread alone, if the fault happens now."""
        with _counting:
            if self.at != place or self.count < 1 or not self.is_on:
                return False
            if self.step not in (None, _now.step) or self.rank not in (None, _now.rank):
                return False
            if self.once and Path(self.once).exists():
                return False
            self.count -= 1
            if self.count >= 1:
                return False
            self.count = int(self.again)
            if self.once:
                Path(self.once).touch()
            return True


@dataclass
class _Now:
    rank: int = 0
    step: int = 0


_now = _Now()
_counting = threading.RLock()
_faults: list[Fault] = []


def arm() -> None:
    """Read the rows from the environment. Called once when a process starts. Raises ValueError or
    TypeError for what are not rows of faults."""
    rank = os.environ.get("RANK", "")
    _now.rank = int(rank) if rank.isdecimal() else 0
    _faults[:] = [Fault(**row) for row in json.loads(os.environ.get(VARIABLE) or "[]")]
    if unknown := [fault.fault for fault in _faults if fault.fault not in ACTIONS]:
        _faults.clear()
        raise ValueError(f"no fault called {unknown[0]!r}")


def note() -> str:
    """One line that names the faults which are armed; empty if there are none."""
    if not _faults:
        return ""
    rows = ", ".join(f"{fault.fault} at {fault.at}" for fault in _faults)
    return f"{VARIABLE} is set, so faults will be injected: {rows}; unset it for real work"


def is_armed(place: str) -> bool:
    """Whether any fault can happen at a place: some places cost time to reach."""
    return any(fault.at == place for fault in _faults)


def at_step(step: int) -> None:
    """Set the step that this process is in."""
    _now.step = step


def reach(place: str, value: Any = None) -> Any:
    """Let the faults of this place happen. Returns the value, possibly changed by a fault."""
    for fault in _faults:
        if fault.is_due(place):
            value = ACTIONS[fault.fault](fault, value)
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
    deadline = time.monotonic() + fault.seconds
    while not Path(fault.till).exists() and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return value


def _hog(fault: Fault, value: Any) -> Any:
    """Start a Python thread that computes without pause and so holds the interpreter lock."""

    def spin() -> None:
        while fault.is_on:
            pass

    threading.Thread(target=spin, name="hog", daemon=True).start()
    return value


def _neighbours(fault: Fault, value: Any) -> Any:
    """Start processes that compute without pause, on the cores of this one, while the fault is on.
    They end with this process, however it ends."""
    busy = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
    command = [sys.executable, "-I", "-c", busy]
    processes = [subprocess.Popen(command) for _ in range(fault.processes)]

    def end() -> None:
        while fault.is_on:
            time.sleep(POLL_S)
        for process in processes:
            process.kill()
            process.wait()
        fault.count = 1  # the next time that it is on, they start again

    threading.Thread(target=end, name="stoker-neighbours", daemon=True).start()
    return value


def _refuse(number: int) -> Callable[[Fault, Any], Any]:
    def fail(fault: Fault, value: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def _out_of_memory(fault: Fault, value: Any) -> Any:
    raise MemoryError(f"injected fault: out of memory at {fault.at}")


def _exhaust(fault: Fault, value: Any) -> Any:
    """Allocate memory of the GPU until PyTorch raises its own error. Without a GPU: MemoryError."""
    import torch

    blocks = []
    while torch.cuda.is_available():
        blocks.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
    return _out_of_memory(fault, value)


ACTIONS: dict[str, Callable[[Fault, Any], Any]] = {
    "kill": _signal(signal.SIGKILL),
    "abort": _signal(signal.SIGABRT),
    "term": _signal(signal.SIGTERM),
    "stall": _stall,
    "hog": _hog,
    "neighbours": _neighbours,
    "nan": lambda fault, value: value * float("nan"),
    "huge": lambda fault, value: value * 1000,
    "oom": _out_of_memory,
    "exhaust": _exhaust,
    "full": _refuse(errno.ENOSPC),
    "quota": _refuse(errno.EDQUOT),
    "unable": _refuse(errno.ENOSYS),
    "forbidden": _refuse(errno.EPERM),
}
