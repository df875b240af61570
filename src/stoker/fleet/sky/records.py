"""What was launched on rented machines and may still be billed: jobs/NAME/sky.json.

Invariants: a job is on record before SkyPilot is called, and counts as billed until its end was
read back from SkyPilot. A file that cannot be read is reported, never passed over: what it was
about may be billed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from stoker.commit import json_bytes, write_bytes
from stoker.errors import StokerError
from stoker.host.plain_file import read_plain
from stoker.text import one_line, shown

FILE = "sky.json"
LARGEST = 1 << 20
MOST_JOBS = 10_000

LAUNCHING, LAUNCHED, UNLISTED, GONE = "launching", "launched", "not listed", "gone"
"""States of a job of our own; others are SkyPilot's words, such as UP or STOPPED."""


@dataclass(frozen=True)
class CloudJob:
    """A job on a rented machine."""

    name: str
    managed: bool
    launched: float
    """Seconds since 1970."""
    machine: str
    """In words, such as "A10G:1 on aws/us-east-1, spot"."""
    bucket: str
    """The run directory."""
    state: str = LAUNCHING
    checked: float | None = None
    """When the state was read back."""

    @property
    def may_be_billed(self) -> bool:
        return self.state != GONE

    def with_state(self, state: str, time: float) -> CloudJob:
        return replace(self, state=state, checked=time)


@dataclass(frozen=True)
class UnreadableJob:
    """A record that cannot be read."""

    path: Path
    why: str


def write_job(folder: Path, job: CloudJob) -> None:
    """Put a job on record. Raises StokerError where that fails."""
    write_file(folder / FILE, json_bytes(asdict(job)))


def write_file(path: Path, data: bytes) -> None:
    """Write a file of a job, with its folder. Raises StokerError where that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StokerError(f"cannot write {shown(str(path))}: {reason}") from error


def read_job(folder: Path) -> CloudJob | UnreadableJob | None:
    """The record of a folder; None where there is none."""
    path = folder / FILE
    try:
        record = json.loads(read_plain(path, LARGEST).decode())
        job = CloudJob(**{field.name: record[field.name] for field in fields(CloudJob)})
        if not has_right_types(job):
            raise ValueError("a field has a wrong type")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        return UnreadableJob(path, one_line(str(error)) or type(error).__name__)
    return job


def has_right_types(job: CloudJob) -> bool:
    texts = (job.name, job.machine, job.bucket, job.state)
    numbers: list[Any] = [job.launched, 0.0 if job.checked is None else job.checked]
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(job.managed, bool)
        and all(type(each) in (int, float) and 0 <= each < 1e11 for each in numbers)
    )


def jobs_below(folder: Path) -> Iterator[tuple[Path, CloudJob | UnreadableJob]]:
    """The jobs of a folder such as `jobs`, by name."""
    try:
        names = sorted(os.listdir(folder))[:MOST_JOBS]  # noqa: PTH208
    except OSError:
        return
    for name in names:
        if job := read_job(folder / name):
            yield folder / name, job
