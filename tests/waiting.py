"""Wait for what another thread or process will do, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


class TimedOut(AssertionError):
    """What a test waited for did not happen in time."""


def until(condition: Callable[[], Value], within_s: float = 60, every_s: float = 0.005) -> Value:
    """The value of a condition as soon as it is true; raises TimedOut."""
    give_up = time.monotonic() + within_s
    while not (value := condition()):
        if time.monotonic() > give_up:
            raise TimedOut(f"did not happen within {within_s:g} s")
        time.sleep(every_s)
    return value
