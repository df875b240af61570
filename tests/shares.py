"""Which cases of a large table run here.

A table (kills, signals, faults, mutations) may take an hour. One run takes a share of it, which
rotates with the commit: `parts` runs in a row cover the whole table. `--whole` runs all of it.

    STOKER_ROTATION=7 pytest tests/chaos      the share of that number
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")
ROTATION = "STOKER_ROTATION"
"""The number of the share: .ci/run sets it to the number of commits."""
THINNING = "STOKER_THINNING"
"""How many times smaller the shares are than usual: .ci/run sets 2 on a slow machine."""


def rotation() -> int:
    return int(os.environ.get(ROTATION, "0"))


def thinned(parts: int) -> int:
    return parts * int(os.environ.get(THINNING, "1"))


def is_turn(number: int, parts: int) -> bool:
    """Whether the heavy test of this number in its module runs with this commit: each runs with one
    of `parts` commits in a row, neighbours with different ones."""
    return (rotation() + number) % thinned(parts) == 0


def share(name: str, cases: Sequence[Case], parts: int, *, whole: bool = False) -> list[Case]:
    """One of `parts` shares of the cases, in their order; all of them for `whole`. Cases that are
    neighbours in the table are rarely in the same share."""
    if whole:
        return list(cases)
    places = list(range(len(cases)))
    if thinned(parts) <= len(cases):  # a small table keeps its shares: none becomes empty
        parts = thinned(parts)
    random.Random(name).shuffle(places)
    return [cases[place] for place in sorted(places[rotation() % parts :: parts])]
