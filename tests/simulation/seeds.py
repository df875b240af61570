"""Schedules that are always run: those that failed once, and those that find the planted bugs.

A change of what a schedule draws gives every number another schedule: `python tests/simulate.py
--hunt` then finds new ones.
"""

from __future__ import annotations

from simulation.schedules import Name

FAILED_ONCE = [
    # Of the simulation itself: the last save counted as waiting, the wrong worker as paused.
    Name("fleet", 34092),
    Name("fleet", 70869),
    Name("grid", 61561),
    Name("grid", 66449),
]
FINDS: dict[str, Name] = {
    "a lease without a fence": Name("grid", 470),
    "a lease that expires though its holder beats": Name("grid", 1),
    "a file that is created by a rename": Name("grid", 1),
    "a holder that never yields": Name("grid", 281),
    "a failed cell that is dropped alone": Name("grid", 253),
    "a failed cell that runs again": Name("grid", 2),
    "a dropped heartbeat check": Name("fleet", 882),
    "a full round that a waiting node ends": Name("fleet", 27),
    "a node that leaves without a word": Name("fleet", 438),
    "a round of two sizes": Name("fleet", 90),
    "a state that is written blindly": Name("fleet", 6),
    "a silence that is not noticed": Name("fleet", 33),
    "ranks that are left behind": Name("fleet", 957),
    "a key that is written in two steps": Name("fleet", 168),
    "a node that does not leave": Name("fleet", 24),
    "a node that does not notice a newer round": Name("fleet", 1116),
}
"""For each planted bug, the first schedule that finds it."""
