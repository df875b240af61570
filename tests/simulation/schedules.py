"""Runs schedules by their number, and says what went wrong.

Invariants: a schedule is named by its area and its number, which is its seed. What fails once
fails again: `trace` repeats it with every event.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from simulation.fleet import FleetSchedule
from simulation.grid import GridSchedule
from simulation.patches import simulated
from simulation.store import StoreSchedule
from simulation.world import Violation

AREAS = {"grid": GridSchedule, "fleet": FleetSchedule, "store": StoreSchedule}
FLEET_EVERY = 3
"""One of so many schedules is one of nodes, which take longer; the others are of workers. Those of
a run in an object store are counted by themselves."""
COLLECT_EVERY = 25
LAST_EVENTS = 40


class Name(NamedTuple):
    """A schedule."""

    area: str
    number: int

    def __str__(self) -> str:
        return f"{self.area} {self.number}"


class Failure(NamedTuple):
    """A schedule in which something happened that must not."""

    name: Name
    message: str


def numbered(first: int, count: int, area: str | None = None) -> Iterator[Name]:
    """So many schedules from a number on: of one area, or of workers and nodes together."""
    for number in range(first, first + count):
        yield Name(area or ("grid" if number % FLEET_EVERY else "fleet"), number)


def hunted(area: str, count: int) -> Iterator[Name]:
    """The schedules of an area among the first ones, in which a planted bug is looked for."""
    if area == "store":
        return numbered(0, count, area)
    return (name for name in numbered(0, count) if name.area == area)


def failures(names: Iterable[Name]) -> Iterator[Failure]:
    """Run schedules; yields those that fail."""
    # A collection would finalise objects at a moment that depends on earlier schedules.
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # what torch keeps for good need not be looked at each time
    try:
        with simulated():
            for count, name in enumerate(names):
                try:
                    AREAS[name.area](name.number).run()
                except Violation as violation:
                    yield Failure(name, str(violation))
                if count % COLLECT_EVERY == 0:
                    gc.collect()
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def trace(name: Name) -> list[str]:
    """Run one schedule; returns its events, and what failed in the last line."""
    gc.collect()
    gc.disable()
    try:
        with simulated():
            schedule = AREAS[name.area](name.number, tracing=True)
            try:
                schedule.run()
                end = "everything held"
            except Violation as violation:
                end = f"FAILED: {violation}"
            return [*schedule.world.trace, f"{name}: {end}"]
    finally:
        gc.enable()
