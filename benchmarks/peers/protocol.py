"""A peer's side of the comparison: prepare once, then run a round for each line 'round' on standard
input.

    <- {"versions": {"torch": "2.15.0"}}                 storage is prepared
    -> round
    <- {"images": 1000, "cpu_s": 3.9, "wall_s": 2.0}     or {"failed": "why"}

Invariants: CPU time is user and system time of this process and of all its descendants, running or
ended. Work that a loader does ahead for its next epoch counts in the round in which it is done: a
round ends when all processes are idle. What packages print goes to standard error.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
POLL_S = 0.05
PATIENCE_S = 10.0


@dataclass(frozen=True)
class Job:
    """The task of a peer. Paths are strings, because it is passed as JSON."""

    files: str
    """A folder of class folders of the stored JPEGs."""
    packed: str
    """The same images as a packed set."""
    place: str
    """An empty folder for the peer's own storage."""
    training: bool
    batch: int
    size: int
    cores: int
    epochs: int
    """Passes over the set in one round."""
    shows: tuple[str, ...]
    """Packages whose versions are reported."""

    def stored(self) -> list[Path]:
        return sorted(Path(self.files).glob("*/*.jpg"))


def serve(prepare: Callable[[Job], Callable[[], int]]) -> None:
    """Run rounds until standard input ends. `prepare` returns a function that runs one epoch and
    returns its number of images."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = Job(**json.loads(sys.argv[1]))

    def answer(**fields: object) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    try:
        epoch = prepare(job)
        answer(versions={name: version_of(name) for name in job.shows})
        for line in sys.stdin:
            assert line == "round\n", line
            answer(**timed(epoch, job.epochs))
    except Exception as error:
        answer(failed=f"{type(error).__name__}: {error}".splitlines()[0])
        raise


def counted(batch: Any, job: Job, kind: str = "uint8") -> int:
    """The number of images of a batch. Raises ValueError where its shape or type is wrong; channels
    may be first or last."""
    number, *sides = batch.shape
    square = [job.size, job.size]
    if sides not in ([*square, 3], [3, *square]) or kind not in str(batch.dtype):
        raise ValueError(f"a batch has the wrong shape or type: {tuple(batch.shape)} {batch.dtype}")
    return int(number)


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def timed(epoch: Callable[[], int], epochs: int) -> dict[str, float]:
    wall, cpu = time.perf_counter(), cpu_s()
    images = sum(epoch() for _ in range(epochs))
    idle_s, idle_cpu = wait_until_idle()
    return {"images": images, "cpu_s": idle_cpu - cpu, "wall_s": idle_s - wall}


def wait_until_idle() -> tuple[float, float]:
    """The time at which all processes were idle, and the CPU time used until then."""
    give_up = time.perf_counter() + PATIENCE_S
    while True:
        now, before = time.perf_counter(), cpu_s()
        time.sleep(POLL_S)
        # Reading the counters itself costs about a tick.
        if cpu_s() - before < 0.4 * POLL_S or now > give_up:
            return now, before


def cpu_s() -> float:
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    ended = sum(use.ru_utime + use.ru_stime for use in own)
    return ended + sum(ticks_below(os.getpid())) / TICKS


def ticks_below(top: int) -> list[int]:
    """CPU ticks of each running descendant, including those of its ended children."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            line = Path(entry.path, "stat").read_text()
        except OSError:
            continue  # it has just ended
        # The name, in brackets, may contain spaces; fields are counted after it.
        fields = line.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(int(field) for field in fields[11:15])
    counts, parents = [], [top]
    while parents:
        for child in children.get(parents.pop(), []):
            counts.append(ticks[child])
            parents.append(child)
    return counts
