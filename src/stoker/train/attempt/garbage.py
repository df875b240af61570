"""Python's garbage, collected between steps, when every rank does it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

STEPS_BETWEEN_COLLECTIONS = 50
"""Steps between two collections of Python's young garbage; each hundredth is complete."""


@contextmanager
def collecting_by_schedule() -> Iterator[Callable[[int], None]]:
    """Yields a function that collects garbage after some steps, in place of Python's own schedule:
    that one pauses a rank in mid-step, at another time than the others, and all wait for it."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # modules and models: a complete collection would walk through them for 0.2 s

    def collect(step: int) -> None:
        if step % STEPS_BETWEEN_COLLECTIONS == 0:
            gc.collect(1 if step % (100 * STEPS_BETWEEN_COLLECTIONS) else 2)

    try:
        yield collect
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
