"""Processes of this machine, watched and ended from outside.

Invariants: a process is named by its number and its start, so a later process with the same number
is another one. What began below a process counts as its own, in whatever session it runs.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import BadRequest
from stoker.host.proc import after_name


@dataclass(frozen=True)
class ProcessStatus:
    parent: int
    start: str


def status_of(pid: int) -> ProcessStatus | None:
    """None where there is no such process, or it has ended and waits for its parent."""
    try:
        fields = after_name(Path(f"/proc/{pid}/stat").read_text())
    except (OSError, ValueError):
        return None
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    return ProcessStatus(int(fields[1]), fields[19])


@dataclass(frozen=True)
class WatchedProcess:
    """A process, such as the shell of a job, and everything below it."""

    pid: int
    start: str

    @classmethod
    def of(cls, pid: int) -> WatchedProcess:
        """Raises BadRequest where there is no such process."""
        status = status_of(pid)
        if status is None:
            raise BadRequest(f"--process {pid}: there is no such process on this machine")
        return cls(pid, status.start)

    @property
    def is_alive(self) -> bool:
        status = status_of(self.pid)
        return status is not None and status.start == self.start

    def below(self) -> list[int]:
        """The processes below this one, the nearest first."""
        if not self.is_alive:
            return []
        numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
        parents = {pid: status.parent for pid in numbers if (status := status_of(pid))}
        order = [self.pid]
        for pid in order:
            order += [child for child, parent in parents.items() if parent == pid]
        return [pid for pid in order[1:] if pid != os.getpid()]

    def ask_to_stop(self) -> None:
        """SIGTERM to what is below, which then saves; a stopped process gets to see it."""
        for pid in self.below():
            send(pid, signal.SIGTERM)
            send(pid, signal.SIGCONT)

    def kill_below(self) -> None:
        for pid in self.below():
            send(pid, signal.SIGKILL)

    def kill(self) -> None:
        below = self.below()
        if self.is_alive:  # first, so that it starts nothing more
            send(self.pid, signal.SIGKILL)
        for pid in below:
            send(pid, signal.SIGKILL)


def send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
