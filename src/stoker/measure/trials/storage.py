"""What the disk below a folder can do by itself: files a second, bytes in a row, bytes at random.

Invariants: files that are there are only read; what is written for the trial is removed again,
however the trial ends. No block is read twice, so none of a pass can come from the pass itself. A
figure says whether it is of the disk or of the page cache.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stoker.host.page_cache import drop, held
from stoker.measure.trials.loading import COLD

BLOCK, RUN = 64 << 10, 1 << 20
"""Bytes of a read at random places, and of one in a row."""
MOST = 1 << 30
"""Bytes of shards that are used."""
SMALL_FILES = 300
TRIAL_BYTES = 256 << 20
SYNCED = 16 << 20
"""Bytes of it that may wait in a cache."""
TRIAL_SHARE = 0.1
"""Of the free space, that a trial file may take."""


@dataclass(frozen=True)
class Read:
    """Bytes that came from some files."""

    bytes: int
    reads: int
    seconds: float
    held: float | None
    """The share of the files that was in memory before; None where nobody knows."""

    @property
    def mb_per_s(self) -> float:
        return self.bytes / max(self.seconds, 1e-9) / 1e6

    @property
    def is_cold(self) -> bool:
        return self.held is not None and self.held <= COLD

    def images_per_s(self, image_bytes: float) -> float:
        return self.bytes / max(self.seconds, 1e-9) / max(image_bytes, 1.0)


@dataclass(frozen=True)
class Metadata:
    """Small files."""

    files: int
    seconds: float
    made: bool
    """Made, looked up and removed; else only looked up and opened, where nothing may be written."""

    @property
    def files_per_s(self) -> float:
        return self.files / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class DiskSpeed:
    place: str
    row: Read
    random: Read
    threads: int
    metadata: Metadata | None
    written_mb_per_s: float | None = None

    @property
    def was_cold(self) -> bool:
        return self.row.is_cold and self.random.is_cold


def measure_storage(
    place: Path, files: Sequence[Path], beside: Path, threads: int, seconds: float
) -> DiskSpeed:
    """What the disk of some files can do; trial files are made beside."""
    chosen: list[Path] = []
    total = 0
    for path in files:
        if not chosen or total < MOST:
            chosen.append(path)
            total += path.stat().st_size
    return DiskSpeed(
        str(place),
        read_in_a_row(chosen, seconds),
        read_at_random(chosen, threads, seconds),
        threads,
        metadata_rate(beside, files),
    )


def measure_bare_storage(place: Path, threads: int, seconds: float) -> DiskSpeed:
    """What the disk of a folder without a set can do, with a file of our own."""
    with trial_file(place, seconds) as (path, written):
        found = measure_storage(place, [path], place, threads, seconds)
    return DiskSpeed(found.place, found.row, found.random, threads, found.metadata, written)


@contextmanager
def trial_file(place: Path, seconds: float) -> Iterator[tuple[Path, float]]:
    """A file of noise, and how many MB/s of it went to the disk; removed afterwards. Smaller where
    the disk is slow: what a cache took in some seconds still has to be written."""
    free = os.statvfs(place)
    most = min(TRIAL_BYTES, int(free.f_bavail * free.f_frsize * TRIAL_SHARE)) // RUN * RUN
    handle, name = tempfile.mkstemp(prefix=".stoker-doctor-", dir=place)
    try:
        noise = np.random.default_rng(0).bytes(RUN)
        began, written = time.perf_counter(), 0
        while written < RUN or (written < most and time.perf_counter() - began < seconds):
            written += os.write(handle, noise)
            if written % SYNCED == 0:
                with suppress(OSError):
                    os.fsync(handle)
        with suppress(OSError):
            os.fsync(handle)
        took_s = time.perf_counter() - began
        os.close(handle)
        handle = -1
        yield Path(name), written / max(took_s, 1e-9) / 1e6
    finally:
        if handle >= 0:
            os.close(handle)
        with suppress(FileNotFoundError):
            Path(name).unlink()


def read_in_a_row(files: Sequence[Path], seconds: float) -> Read:
    """One file after the other, by one thread."""
    drop(files)
    share, room = held(files), memoryview(bytearray(RUN))
    taken = reads = 0
    began = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while time.perf_counter() - began < seconds and (count := file.readinto(room)):
                taken, reads = taken + count, reads + 1
    return Read(taken, reads, time.perf_counter() - began, share)


def read_at_random(files: Sequence[Path], threads: int, seconds: float) -> Read:
    """Blocks in any order, by as many threads as load images."""
    drop(files)
    share = held(files)
    handles = [os.open(path, os.O_RDONLY) for path in files]
    try:
        for handle in handles:
            if hasattr(os, "posix_fadvise"):
                with suppress(OSError):
                    # Else the kernel reads ahead, and that is no random read.
                    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        counts = [max(os.fstat(handle).st_size // BLOCK, 1) for handle in handles]
        places = [(h, n * BLOCK) for h, c in zip(handles, counts, strict=True) for n in range(c)]
        order = np.random.default_rng(0).permutation(len(places)).tolist()
        began = time.perf_counter()

        def some(worker: int) -> tuple[int, int]:
            room, taken, reads = bytearray(BLOCK), 0, 0
            for number in order[worker::threads]:
                if time.perf_counter() - began >= seconds:
                    break
                handle, offset = places[number]
                taken, reads = taken + os.preadv(handle, [room], offset), reads + 1
            return taken, reads

        with ThreadPoolExecutor(threads) as pool:
            done = list(pool.map(some, range(threads)))
        took_s = time.perf_counter() - began
    finally:
        for handle in handles:
            os.close(handle)
    return Read(sum(each[0] for each in done), sum(each[1] for each in done), took_s, share)


def metadata_rate(beside: Path, files: Sequence[Path]) -> Metadata | None:
    """Small files a second: made beside, or only opened where nothing may be written."""
    try:
        with tempfile.TemporaryDirectory(prefix=".stoker-doctor-", dir=beside) as name:
            return timed_files(SMALL_FILES, True, lambda n: make_and_remove(Path(name) / str(n)))
    except OSError:
        if not files:
            return None
    return timed_files(SMALL_FILES, False, lambda n: look_and_open(files[n % len(files)]))


def timed_files(count: int, made: bool, one: Callable[[int], None]) -> Metadata:
    began = time.perf_counter()
    for number in range(count):
        one(number)
    return Metadata(count, time.perf_counter() - began, made)


def make_and_remove(path: Path) -> None:
    path.write_bytes(b"stoker")
    path.stat()
    path.unlink()


def look_and_open(path: Path) -> None:
    path.stat()
    path.open("rb").close()


def as_data(found: DiskSpeed) -> dict[str, Any]:
    """What was measured, as plain data."""
    plain = {name: value for name, value in vars(found).items() if value is not None}
    for name in ("row", "random"):
        read = getattr(found, name)
        plain[name] = vars(read) | {"mb_per_s": read.mb_per_s}
    if found.metadata:
        plain["metadata"] = vars(found.metadata) | {"files_per_s": found.metadata.files_per_s}
    return plain | {"was_cold": found.was_cold}
