"""Wait for what another thread or process will do, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Said = TypeVar("Said")


def until(happened: Callable[[], Said], within_s: float = 60) -> Said:
    """What `happened` says as soon as it is true."""
    give_up = time.monotonic() + within_s
    while not (said := happened()):
        assert time.monotonic() < give_up, f"did not happen within {within_s:g} s"
        time.sleep(0.005)
    return said
