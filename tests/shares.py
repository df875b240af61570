"""Which cases of a large table run here.

A table (kills, signals, faults, mutations) may take an hour. One run takes a share of it, which
rotates with the commit: `parts` runs in a row cover the whole table. `--whole` runs all of it.

    STOKER_ROTATION=7 pytest tests/chaos      the share of that number
"""

from __future__ import annotations

import os
import random
import zlib
from collections.abc import Sequence
from typing import TypeVar

Case = TypeVar("Case")
ROTATION = "STOKER_ROTATION"
"""The number of the share: .ci/run sets it to the number of commits."""


def rotation() -> int:
    return int(os.environ.get(ROTATION, "0"))


def is_turn(name: str, parts: int) -> bool:
    """Whether a heavy test runs with this commit: with one of `parts` commits in a row."""
    return (rotation() + zlib.crc32(name.encode())) % parts == 0


def share(name: str, cases: Sequence[Case], parts: int, *, whole: bool = False) -> list[Case]:
    """One of `parts` shares of the cases, in their order; all of them for `whole`. Cases that are
    neighbours in the table are rarely in the same share."""
    if whole:
        return list(cases)
    places = list(range(len(cases)))
    random.Random(name).shuffle(places)
    return [cases[place] for place in sorted(places[rotation() % parts :: parts])]
