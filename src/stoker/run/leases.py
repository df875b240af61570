"""The leases of the machines that a run has had: RUN/leases/000001.jsonl, one file a machine.

    {"kind": "begin", "time": 1700000000.0, "host": "ip-10-0-0-1", "step": 120}
    {"kind": "beat", "time": 1700000300.0}

Invariants: a file is only appended to, by one machine. The hours of a machine go from its first
line to its last, so a lost machine is missing some minutes at most. A damaged line is passed over.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.commit import open_at_end
from stoker.host.plain_file import read_plain
from stoker.run.kinds import is_number, is_whole

FOLDER = "leases"
BEAT_S = 300.0
USED_UP = "used up"
"""The kind of a last line."""
MOST_FILES, MOST_BYTES = 10_000, 1 << 20


@dataclass(frozen=True)
class PastLease:
    """One machine of a run."""

    step: int
    """Steps that were done when the machine began."""
    seconds: float
    used_up: bool = False
    """Whether the machine ended because the hours of the lease were used up."""


def past_leases(run: Path) -> list[PastLease]:
    """The leases of a run, oldest first; what cannot be read is left out."""
    with suppress(OSError):
        names = sorted(os.listdir(run / FOLDER))[:MOST_FILES]  # noqa: PTH208
        leases = [lease_of(run / FOLDER / name) for name in names if name.endswith(".jsonl")]
        return [lease for lease in leases if lease]
    return []


def lease_of(path: Path) -> PastLease | None:
    times: list[float] = []
    step, used_up = 0, False
    for record in read_lines(path):
        times += [record["time"]] if is_number(record.get("time")) else []
        if record.get("kind") == "begin" and is_whole(record.get("step")):
            step = record["step"]
        used_up |= record.get("kind") == USED_UP
    return PastLease(step, max(times) - min(times), used_up) if times else None


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a small plain file; none where it is something else."""
    records = []
    with suppress(OSError, ValueError):
        for line in read_plain(path, MOST_BYTES).splitlines():
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                records += [record] if isinstance(record, dict) else []
    return records


def used_s(run: Path) -> float:
    """Seconds of all machines that the run has had."""
    return sum(lease.seconds for lease in past_leases(run))


class LeaseFile:
    """Writes the file of this machine: begins it, and adds a line every BEAT_S seconds."""

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER
        self._path: Path | None = None
        self._last = 0.0

    def beat(self, step: int) -> None:
        """Raises OSError where the disk refuses."""
        now = time.time()
        if self._path is None:
            self._path = self._create({"kind": "begin", "host": socket.gethostname(), "step": step})
            self._last = now
        elif now - self._last >= BEAT_S:
            self.write("beat")

    def write(self, kind: str, **facts: Any) -> None:
        """Append a line; nothing where the file has not begun."""
        if self._path is not None:
            with open_at_end(self._path) as file:
                file.write(line_of({"kind": kind, **facts}))
            self._last = time.time()

    def _create(self, facts: dict[str, Any]) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        numbers = [int(path.stem) for path in self._folder.glob("*.jsonl") if path.stem.isdecimal()]
        number = max(numbers, default=0) + 1
        while True:
            path = self._folder / f"{number:06d}.jsonl"
            try:
                with path.open("xb") as file:
                    file.write(line_of(facts))
                return path
            except FileExistsError:
                number += 1


def line_of(facts: dict[str, Any]) -> bytes:
    return json.dumps({"time": round(time.time(), 1), **facts}).encode() + b"\n"
