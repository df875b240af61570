"""The peer's side: prepare once, then one epoch for each line 'round' on standard input.

    <- {"versions": {"torch": "2.15.0"}}                 storage is prepared
    -> round
    <- {"images": 1000, "cpu_s": 3.9, "wall_s": 2.0}     or {"failed": "why"}

Invariants: CPU time is user and system time of this process and of all below it, living or ended.
Work that a loader does ahead for its next epoch belongs to the round in which it is done: a round
ends when the processes have come to rest. What packages print goes to standard error.
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
LOOK_S = 0.05
PATIENCE_S = 10.0


@dataclass(frozen=True)
class Job:
    """What a peer is asked to do; paths as text, because it travels as JSON."""

    files: str
    """A folder of class folders of the stored JPEGs."""
    packed: str
    """The same as a packed set."""
    place: str
    """An empty folder for the peer's own storage."""
    training: bool
    batch: int
    size: int
    cores: int
    epochs: int
    """How often a round runs over the set."""
    shows: tuple[str, ...]
    """Packages whose versions are told."""

    def stored(self) -> list[Path]:
        return sorted(Path(self.files).glob("*/*.jpg"))


def serve(prepare: Callable[[Job], Callable[[], int]]) -> None:
    """Answer rounds until standard input ends. An epoch returns its number of images."""
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
    """The images of a batch, which must be what was asked for, channels first or last."""
    number, *sides = batch.shape
    square = [job.size, job.size]
    if sides not in ([*square, 3], [3, *square]) or kind not in str(batch.dtype):
        raise ValueError(f"a batch of {batch.dtype} {tuple(batch.shape)}")
    return int(number)


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "?"


def timed(epoch: Callable[[], int], epochs: int) -> dict[str, float]:
    wall, cpu = time.perf_counter(), cpu_s()
    images = sum(epoch() for _ in range(epochs))
    rest_s, rest_cpu = at_rest()
    return {"images": images, "cpu_s": rest_cpu - cpu, "wall_s": rest_s - wall}


def at_rest() -> tuple[float, float]:
    """When nothing worked any more, and the CPU time by then."""
    give_up = time.perf_counter() + PATIENCE_S
    while True:
        now, before = time.perf_counter(), cpu_s()
        time.sleep(LOOK_S)
        # Looking itself costs a tick or so.
        if cpu_s() - before < 0.4 * LOOK_S or now > give_up:
            return now, before


def cpu_s() -> float:
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    used = sum(use.ru_utime + use.ru_stime for use in own)
    return used + sum(below(os.getpid())) / TICKS


def below(top: int) -> list[int]:
    """CPU ticks of each living descendant, with those of its own ended children."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            line = Path(entry.path, "stat").read_text()
        except OSError:
            continue  # ended meanwhile
        # The name, in brackets, may hold blanks; fields are counted after it.
        fields = line.rpartition(")")[2].split()
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        ticks[int(entry.name)] = sum(int(field) for field in fields[11:15])
    found, open_ends = [], [top]
    while open_ends:
        for child in children.get(open_ends.pop(), []):
            found.append(ticks[child])
            open_ends.append(child)
    return found
