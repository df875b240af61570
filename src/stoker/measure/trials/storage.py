"""The speed of the disk below a folder, alone: small files, sequential reads, random reads.

Invariants: the user's files are only read. Files written for the measurement are removed, however
it ends. No block is read twice, so a pass never reads what it has itself brought into the page
cache. Each figure says whether it was measured cold.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import accumulate, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from stoker.host.page_cache import cached_share, drop, is_cold

BLOCK, RUN = 64 << 10, 1 << 20
"""Bytes of one random read, and of one sequential read."""
MOST = 1 << 30
"""Bytes of shards after which no further shard is used."""
SMALL_FILES = 300
TRIAL_BYTES, TRIAL_SHARE = 256 << 20, 0.1
"""Largest size of the trial file, and share of the free space that it may take."""
SYNCED = 16 << 20
"""Bytes of the trial file between two fsyncs."""


@dataclass(frozen=True)
class Read:
    """One measurement of reading files."""

    bytes: int
    reads: int
    seconds: float
    held: float | None
    """The share of the files in the page cache before; None where that is unknown."""

    @property
    def mb_per_s(self) -> float:
        return self.bytes / max(self.seconds, 1e-9) / 1e6

    @property
    def is_cold(self) -> bool:
        return is_cold(self.held)

    def images_per_s(self, image_bytes: float) -> float:
        return self.bytes / max(self.seconds, 1e-9) / max(image_bytes, 1.0)


@dataclass(frozen=True)
class Metadata:
    """The measurement of small files."""

    files: int
    seconds: float
    made: bool
    """False: nothing could be written; existing files were looked up and opened instead."""

    @property
    def files_per_s(self) -> float:
        return self.files / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class DiskSpeed:
    """All measurements of the disk below a folder."""

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
    folder: Path, files: Sequence[Path], beside: Path, threads: int, seconds: float
) -> DiskSpeed:
    """The speed of the disk that holds some files; small files are made in the folder `beside`."""
    bytes_before = accumulate((path.stat().st_size for path in files), initial=0)
    shards = [path for path, before in zip(files, bytes_before, strict=False) if before < MOST]
    row, random = read_sequentially(shards, seconds), read_at_random(shards, threads, seconds)
    return DiskSpeed(str(folder), row, random, threads, measure_small_files(beside, files))


def measure_bare_storage(folder: Path, threads: int, seconds: float) -> DiskSpeed:
    """The speed of the disk of a folder that holds no set, measured with a trial file."""
    with trial_file(folder, seconds) as (path, written_mb_per_s):
        speed = measure_storage(folder, [path], folder, threads, seconds)
    return replace(speed, written_mb_per_s=written_mb_per_s)


@contextmanager
def trial_file(folder: Path, seconds: float) -> Iterator[tuple[Path, float]]:
    """A file of random bytes and its MB/s, written for at most `seconds` and removed afterwards."""
    disk = os.statvfs(folder)
    most = min(TRIAL_BYTES, int(disk.f_bavail * disk.f_frsize * TRIAL_SHARE)) // RUN * RUN
    with tempfile.NamedTemporaryFile(prefix=".stoker-doctor-", dir=folder, buffering=0) as file:
        noise = np.random.default_rng(0).bytes(RUN)
        began, written = time.perf_counter(), 0
        while written < RUN or (written < most and time.perf_counter() - began < seconds):
            written += file.write(noise)
            if written % SYNCED == 0:
                with suppress(OSError):
                    os.fsync(file.fileno())
        with suppress(OSError):
            os.fsync(file.fileno())
        yield Path(file.name), written / max(time.perf_counter() - began, 1e-9) / 1e6


def read_sequentially(files: Sequence[Path], seconds: float) -> Read:
    """Read one file after the other, with one thread."""
    drop(files)
    cached, buffer = cached_share(files), memoryview(bytearray(RUN))
    total = reads = 0
    began = time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while time.perf_counter() - began < seconds and (count := file.readinto(buffer)):
                total, reads = total + count, reads + 1
    return Read(total, reads, time.perf_counter() - began, cached)


def read_at_random(files: Sequence[Path], threads: int, seconds: float) -> Read:
    """Read the blocks of all files in a random order, with as many threads as load images."""
    drop(files)
    cached = cached_share(files)
    with ExitStack() as stack:
        handles = [stack.enter_context(path.open("rb", buffering=0)).fileno() for path in files]
        for handle in handles:
            with suppress(OSError, AttributeError):
                # Without this the kernel reads ahead, and the reads are not random.
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
        counts = [max(os.fstat(handle).st_size // BLOCK, 1) for handle in handles]
        blocks = [(h, n * BLOCK) for h, c in zip(handles, counts, strict=True) for n in range(c)]
        order = np.random.default_rng(0).permutation(len(blocks)).tolist()
        began = time.perf_counter()

        def read_share(worker: int) -> tuple[int, int]:
            buffer, total, reads = bytearray(BLOCK), 0, 0
            for number in order[worker::threads]:
                if time.perf_counter() - began >= seconds:
                    break
                handle, offset = blocks[number]
                total, reads = total + os.preadv(handle, [buffer], offset), reads + 1
            return total, reads

        with ThreadPoolExecutor(threads) as pool:
            counts_of_threads = list(pool.map(read_share, range(threads)))
        wall_s = time.perf_counter() - began
    total, reads = (sum(column) for column in zip(*counts_of_threads, strict=True))
    return Read(total, reads, wall_s, cached)


def measure_small_files(folder: Path, files: Sequence[Path]) -> Metadata | None:
    """Create and remove small files; where nothing can be written, open `files`; None if empty."""
    try:
        with tempfile.TemporaryDirectory(prefix=".stoker-doctor-", dir=folder) as name:
            began = time.perf_counter()
            for number in range(SMALL_FILES):
                path = Path(name, str(number))
                path.write_bytes(b"stoker")
                path.stat()
                path.unlink()
            return Metadata(SMALL_FILES, time.perf_counter() - began, True)
    except OSError:
        if not files:
            return None
    began = time.perf_counter()
    for path in islice(cycle(files), SMALL_FILES):
        path.stat()
        path.open("rb").close()
    return Metadata(SMALL_FILES, time.perf_counter() - began, False)


def as_data(speed: DiskSpeed) -> dict[str, Any]:
    data = {name: value for name, value in vars(speed).items() if value is not None}
    for name in ("row", "random"):
        read = getattr(speed, name)
        data[name] = vars(read) | {"mb_per_s": read.mb_per_s}
    if speed.metadata:
        data["metadata"] = vars(speed.metadata) | {"files_per_s": speed.metadata.files_per_s}
    return data | {"was_cold": speed.was_cold}
