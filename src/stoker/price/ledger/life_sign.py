"""A sign of life of a machine in an attempt: until when it is known to have worked.

Invariants: the file has one line, the machine's monotonic clock in seconds, and is written in place
once a second by a thread that goes on through starting, compiling and evaluating. So a killed
attempt is billed up to about a second before its end. A disk that refuses it ends nothing.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from stoker.host.plain_file import read_plain
from stoker.run.directory import Run

EVERY_S = 1.0
WIDTH = 20
"""Bytes of the line, so that a later one replaces all of an earlier one."""


def life_sign_path(run: Run, attempt: int, rank: int) -> Path:
    return run.attempt_path(attempt) / f"rank{rank}.alive"


def life_sign(run: Run, attempt: int, rank: int) -> float | None:
    """The machine's clock at the last sign of life of a rank; None where there is none."""
    with suppress(OSError, ValueError):
        text = read_plain(life_sign_path(run, attempt, rank), WIDTH).decode("ascii")
        if text.replace(".", "", 1).strip().isdecimal():
            return float(text)
    return None


class LifeSign:
    """Writes the signs of life of one rank, attempt after attempt."""

    def __init__(self) -> None:
        self._file = -1
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="stoker-life-sign", daemon=True)

    def begin(self, path: Path) -> None:
        """Write to this file from here on."""
        with self._lock, suppress(OSError):
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        self.write()
        if not self._thread.ident:
            self._thread.start()

    def write(self) -> None:
        line = f"{time.monotonic():<{WIDTH - 1}.3f}\n"
        with self._lock, suppress(OSError):
            if self._file >= 0:
                os.pwrite(self._file, line.encode(), 0)

    def close(self) -> None:
        """Write a last sign."""
        self.write()
        self._over.set()
        if self._thread.ident:
            self._thread.join()
        with self._lock, suppress(OSError):
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def _repeat(self) -> None:
        while not self._over.wait(EVERY_S):
            self.write()
