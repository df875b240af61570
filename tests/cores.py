"""How busy others keep the cores of a shared machine.

A test that measures is spoilt where a neighbour, or the hypervisor, takes the cores away. Before it
is tried again it waits until they are calm, but not for long.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from stoker.host import proc

CALM_S = 45
SLOWER, STOLEN, IN_A_ROW = 1.15, 0.02, 3
"""Calm: this close to the quickest that was seen, this share stolen at most, so often in a row."""


class Cores:
    """The usable cores; the first look is the yardstick until a quicker one is seen."""

    def __init__(self) -> None:
        self.quickest_s = self.now_s()

    def now_s(self) -> float:
        """What the same work takes now, on the slowest of the cores."""
        usable, took = os.sched_getaffinity(0), []
        try:
            for core in usable:
                os.sched_setaffinity(0, {core})
                began = time.perf_counter()
                sum(range(5_000_000))
                took.append(time.perf_counter() - began)
        finally:
            os.sched_setaffinity(0, usable)
        return max(took)

    def are_calm(self) -> bool:
        before = Ticks()
        now_s = self.now_s()
        self.quickest_s = min(self.quickest_s, now_s)
        return now_s < SLOWER * self.quickest_s and before.stolen_since() <= STOLEN

    def wait_for_calm(self) -> bool:
        """Whether they became calm."""
        give_up, calm = time.monotonic() + CALM_S, 0
        while calm < IN_A_ROW and time.monotonic() < give_up:
            calm = calm + 1 if self.are_calm() else 0
        return calm == IN_A_ROW


class Ticks:
    """What the machine's cores had done at one moment."""

    def __init__(self, path: Path = Path("/proc/stat")) -> None:
        self._path, self._first = path, self._read(path)

    @staticmethod
    def _read(path: Path) -> dict[str, int]:
        try:
            words = path.read_text().split("\n", 1)[0].split()[1:]
        except OSError:  # no Linux: nobody counts
            return {}
        return dict(zip(proc.TICKS, map(int, words), strict=False))

    def stolen_since(self) -> float:
        """The share of the cores' time since then in which the hypervisor ran somebody else."""
        now = self._read(self._path)
        since = {name: now[name] - count for name, count in self._first.items() if name in now}
        return since.get("steal", 0) / max(1, sum(since.values()))
