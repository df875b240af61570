"""Leases: which worker runs a cell, so that many workers can share one folder.

    cells/ID/leases/000003          who holds the third lease of a cell
    cells/ID/leases/000003.beat     a number that the holder raises every few seconds
    cells/ID/leases/000003.end      how the holder ended: the cell is free
    cells/ID/result.json            the result: the cell is done

Invariants: a lease is a file with the next number, which one worker alone can create. A lease ends
by its `.end` file, by the death of its holder on this machine, or when its beat has not changed for
EXPIRES_S seconds of the observer's own clock: clocks of two machines are never compared. A holder
that cannot beat for YIELDS_S, or that sees a later lease, has lost the cell: it ends its command
and commits nothing. Whatever happens, a result is created once.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.host.counters import kernel_text
from stoker.host.proc import after_name
from stoker.locks.files import GridClock, GridFiles, parsed

BEATS_S = 5.0
"""Seconds between two beats."""
YIELDS_S = 25.0
"""A holder that could not beat for so long gives the cell up."""
EXPIRES_S = 60.0
"""A lease whose beat has not changed for so long is free."""
NEVER = -1


@dataclass(frozen=True)
class Holder:
    """A process that can hold leases."""

    name: str
    host: str
    boot: str = ""
    """Which start of which kernel; with `space` and `pid` it names a process, until a restart."""
    space: str = ""
    pid: int = 0
    began: str = ""

    @classmethod
    def this_process(cls, name: str = "") -> Holder:
        boot = kernel_text("/proc/sys/kernel/random/boot_id").strip()
        host, pid = socket.gethostname(), os.getpid()
        space = ""
        with suppress(OSError):
            space = str(Path("/proc/self/ns/pid").readlink())
        return cls(name or f"{host}:{pid}", host, boot, space, pid, start_time(pid))

    def is_dead(self, observer: Holder) -> bool:
        """Whether this process has surely ended, as far as an observer on the same machine sees."""
        same = (self.boot, self.space) == (observer.boot, observer.space)
        return bool(same and self.boot and self.began and start_time(self.pid) != self.began)


def start_time(pid: int) -> str:
    """When a process began, in ticks since the machine started; empty where there is none, and for
    one that has ended and waits for its parent."""
    fields = after_name(kernel_text(f"/proc/{pid}/stat"))
    return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""


@dataclass
class Lease:
    """The right of this worker to run one cell."""

    cell: str
    number: int
    beat: int = 0
    beat_at: float = 0.0
    lost: bool = False


@dataclass
class Leases:
    """What one worker knows of the leases of a grid."""

    files: GridFiles
    clock: GridClock
    holder: Holder
    _watched: dict[str, tuple[int, int, float]] = field(default_factory=dict)
    """For each cell that another worker runs: lease, beat, and since when the beat is that."""

    def folder(self, cell: str) -> str:
        return f"cells/{cell}/leases"

    def newest(self, cell: str) -> tuple[int, set[str]]:
        """The number of the newest lease, 0 for none, and all names."""
        names = set(self.files.names(self.folder(cell)))
        return max((int(name) for name in names if name.isdecimal()), default=0), names

    def take(self, cell: str) -> Lease | None:
        """A lease on a cell that is free; None where it is not, or another worker was quicker."""
        number, names = self.newest(cell)
        if number and f"{number:06d}.end" not in names and not self._is_over(cell, number):
            return None
        self._watched.pop(cell, None)
        if not self._next(cell, number):
            return None
        return Lease(cell, number + 1, beat_at=self.clock.now())

    def _next(self, cell: str, number: int) -> bool:
        """Create the lease after that number; False where another worker was quicker."""
        text = json.dumps(vars(self.holder)).encode()
        return self.files.create(f"{self.folder(cell)}/{number + 1:06d}", text)

    def seen(self, cell: str) -> tuple[int, int]:
        """The lease and the beat of another worker that `take` saw last."""
        return self._watched.get(cell, (0, NEVER, 0.0))[:2]

    def holder_is_dead(self, cell: str, number: int) -> bool:
        """Whether the holder of a lease has surely ended, as far as this machine sees."""
        return self._holder_of(cell, number).is_dead(self.holder)

    def _is_over(self, cell: str, number: int) -> bool:
        """Whether the holder is dead, or has not beaten for long enough."""
        if self.holder_is_dead(cell, number):
            return True
        beat = self._beat_of(cell, number)
        watched = self._watched.get(cell)
        if watched is None or watched[:2] != (number, beat):
            self._watched[cell] = (number, beat, self.clock.now())
            return False
        return self.clock.now() - watched[2] > EXPIRES_S

    def _holder_of(self, cell: str, number: int) -> Holder:
        """Who holds a lease; an unknown process where the file is not readable."""
        with suppress(TypeError):  # another has other fields, or none
            return Holder(**parsed(self.files.read(f"{self.folder(cell)}/{number:06d}")))
        return Holder("unknown", "unknown")

    def _beat_of(self, cell: str, number: int) -> int:
        with suppress(ValueError):
            return int(self.files.read(f"{self.folder(cell)}/{number:06d}.beat") or b"")
        return NEVER

    def beat(self, lease: Lease) -> bool:
        """Raise the beat if it is time to. Returns False, from then on, where the lease is lost:
        the beat could not be raised for too long, or another worker has a later lease."""
        now = self.clock.now()
        if lease.lost or now - lease.beat_at > YIELDS_S:
            lease.lost = True
        elif now - lease.beat_at >= BEATS_S:
            with suppress(OSError):  # tried again, until it is too late
                if self.newest(lease.cell)[0] != lease.number:
                    lease.lost = True
                    return False
                name = f"{self.folder(lease.cell)}/{lease.number:06d}.beat"
                self.files.replace(name, str(lease.beat + 1).encode())
                lease.beat += 1
                lease.beat_at = now
        return not lease.lost

    def keep(self, lease: Lease) -> bool:
        """As `beat`, for a holder that may stand still: it then takes the next lease. Returns
        False where another worker has a later one, or where the disk does not answer."""
        now = self.clock.now()
        try:
            if not lease.lost and now - lease.beat_at > YIELDS_S:
                if self.newest(lease.cell)[0] == lease.number:
                    lease.lost = not self._next(lease.cell, lease.number)
                    lease.number, lease.beat, lease.beat_at = lease.number + 1, 0, now
                else:
                    lease.lost = True
            return self.beat(lease) and self.holds(lease)
        except OSError:
            return not lease.lost and now - lease.beat_at <= YIELDS_S

    def end(self, lease: Lease, record: dict[str, Any]) -> None:
        """Record how the holder ended, which frees the cell. Does nothing for a lost lease."""
        if not lease.lost:
            name = f"{self.folder(lease.cell)}/{lease.number:06d}.end"
            self.files.create(name, json.dumps(record).encode())

    def holds(self, lease: Lease) -> bool:
        """Whether the lease is not lost, as far as this worker can see now."""
        lease.lost = lease.lost or self.clock.now() - lease.beat_at > YIELDS_S
        lease.lost = lease.lost or self.newest(lease.cell)[0] != lease.number
        return not lease.lost

    def commit(self, lease: Lease, result: bytes) -> bool:
        """Create the result. Returns False where the lease is lost or there is a result already."""
        if not self.holds(lease):
            return False
        return self.files.create(f"cells/{lease.cell}/result.json", result, durable=True)
