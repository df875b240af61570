"""How busy other programs, or other machines of the same host, keep the cores.

They spoil a test that measures. Before such a test is tried again, it waits for calm cores.
"""

from __future__ import annotations

import os
import time

CALM_S = 45
SLOWER, IN_A_ROW = 1.15, 3
"""Calm: the same work takes at most so much longer than the quickest time, so often in a row."""


class Cores:
    """The usable cores. The quickest time so far of some work is what later times are compared
    with."""

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

    def wait_for_calm(self) -> None:
        """Wait until they are about as quick as ever, but not longer than CALM_S."""
        give_up, calm = time.monotonic() + CALM_S, 0
        while calm < IN_A_ROW and time.monotonic() < give_up:
            now_s = self.now_s()
            self.quickest_s = min(self.quickest_s, now_s)
            calm = calm + 1 if now_s < SLOWER * self.quickest_s else 0
