"""Which of many options are worth a look: no other one is both as fast and as cheap."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Option = TypeVar("Option")


def frontier(
    options: Iterable[Option], cost: Callable[[Option], tuple[float, float]]
) -> list[Option]:
    """The options that no other is both as fast and as cheap as, the fastest first. Of equal ones
    the first stays."""
    best: list[Option] = []
    lowest = float("inf")
    for option in sorted(options, key=cost):
        dollars = cost(option)[1]
        if dollars < lowest:
            best.append(option)
            lowest = dollars
    return best
