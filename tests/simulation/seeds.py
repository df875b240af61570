"""Schedules that are always run: those that failed once, and those that find the planted bugs.

A change of what a schedule draws gives every number another schedule: `python tests/simulate.py
--hunt` then finds new ones.
"""

from __future__ import annotations

from simulation.schedules import Name

FAILED_ONCE = [Name("fleet", 45138), Name("store", 15497)]
FINDS = {
    "a lease without a fence": Name("grid", 224),
    "a lease that expires though its holder beats": Name("grid", 19),
    "a file that is created by a rename": Name("grid", 4),
    "a holder that never yields": Name("grid", 281),
    "a failed cell that is dropped alone": Name("grid", 322),
    "a failed cell that runs again": Name("grid", 2),
    "a dropped heartbeat check": Name("fleet", 273),
    "a full round that a waiting node ends": Name("fleet", 108),
    "a node that does not notice a newer round": Name("fleet", 1041),
    "a round of two sizes": Name("fleet", 117),
    "a state that is written blindly": Name("fleet", 51),
    "a silence that is not noticed": Name("fleet", 807),
    "a key that is written in two steps": Name("fleet", 1326),
    "a node that does not leave": Name("fleet", 57),
    "ranks that are left behind": Name("fleet", 33),
    "a node that leaves without a word": Name("fleet", 3837),
    "a head that is written without a condition": Name("store", 1),
    "a lease that is taken at once": Name("store", 1),
    "a lease that never ends": Name("store", 0),
    "a lease that ends by another's time": Name("store", 30),
    "a lease that ends though its holder renews it": Name("store", 1),
    "a lease without a margin for clocks": Name("store", 169),
    "a lease that counts from the answer": Name("store", 49),
    "a lost answer that counts as a failure": Name("store", 4),
    "a failed write that is tried on any head": Name("store", 1),
    "a release of another's lease": Name("store", 49),
    "a lease that is held until its release is answered": Name("store", 71),
    "a beat that is used twice": Name("store", 342),
    "a change of old content": Name("store", 326),
    "a marker before the events": Name("store", 0),
    "a marker before the files": Name("store", 0),
    "a folder that is taken without its marker": Name("store", 22),
    "a download under its final name": Name("store", 0),
    "a folder that two holders share": Name("store", 29),
}
"""For each planted bug, the first schedule that finds it."""
