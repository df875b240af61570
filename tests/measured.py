"""Limits on time, speed and memory: what a busy neighbour spoilt is measured again.

    @measured()
    def test_it_is_quick() -> None:
        took_s = ...
        held(took_s < 25, took_s)

Only what `held` refuses is tried again, with fresh fixtures of the test, and shows as a rerun in
pytest's summary; any other failure is one at once, so nothing that must be exact hides behind it.
A neighbour can only make a measurement worse: one that holds proves the limit, and a true
regression misses it every time. A fixture of a module is not made again: measure in the test. The
time limit of a test is for all its tries together.
"""

from __future__ import annotations

import pytest


class Missed(AssertionError):
    """A measured limit did not hold this time."""


def held(holds: bool, *found: object) -> None:
    if not holds:
        raise Missed(*found)


def measured(tries: int = 3) -> pytest.MarkDecorator:
    return pytest.mark.flaky(reruns=tries - 1, only_rerun=[f"^{Missed.__name__}:"])
