"""The fields of a stored result, which may come from a stranger: each is checked as it is read.

Invariants: a value is taken only with its type and range. Numbers are finite. What is wrong is
named with its place in the file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.errors import BadRequest
from stoker.text import printable

MOST_TEXT = 2000
MOST_ITEMS = 10_000
HUGE = 1e15
"""No figure of a benchmark is larger."""


class Fields:
    """A table of a file; `place` says where it is, in words."""

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, Mapping):
            raise BadRequest(f"{place} is no table: this file was not written by 'stoker bench'")
        self._values, self.place = value, place

    def wrong(self, name: str, expected: str) -> BadRequest:
        if name not in self._values:
            return BadRequest(f"{self.place}: {name} is missing")
        value = printable(repr(self._values[name]))[:60]
        return BadRequest(f"{self.place}: {name} must be {expected}, not {value}")

    def text(self, name: str, most: int = MOST_TEXT) -> str:
        value = self._values.get(name)
        if not isinstance(value, str) or len(value) > most:
            raise self.wrong(name, f"a text of at most {most:,} characters")
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        value = self._values.get(name)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(name, f"one of {', '.join(choices)}")
        return value

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def number(self, name: str, least: float = 0.0, most: float = HUGE) -> float:
        value: Any = self._values.get(name)
        if not is_number(value) or not least <= value <= most:
            raise self.wrong(name, f"a number from {least:g} to {most:g}")
        return float(value)

    def number_or_none(self, name: str, least: float = 0.0, most: float = HUGE) -> float | None:
        return None if self._values.get(name) is None else self.number(name, least, most)

    def whole(self, name: str, least: int = 0, most: int = int(HUGE)) -> int:
        value = self._values.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"a whole number from {least:,} to {most:,}")
        return value

    def numbers(self, name: str, most: int) -> tuple[float, ...]:
        values = self.items(name, most)
        if not all(is_number(value) and 0 <= value <= HUGE for value in values):
            raise self.wrong(name, "a list of numbers")
        return tuple(float(value) for value in values)

    def items(self, name: str, most: int = MOST_ITEMS) -> list[Any]:
        values = self._values.get(name)
        if not isinstance(values, list) or len(values) > most:
            raise self.wrong(name, f"a list of at most {most:,}")
        return values

    def table(self, name: str) -> Fields:
        value = self._values.get(name)
        if not isinstance(value, Mapping):
            raise self.wrong(name, "a table")
        return Fields(value, f"{self.place}: {name}")

    def table_or_none(self, name: str) -> Fields | None:
        return None if self._values.get(name) is None else self.table(name)

    def plain(self) -> dict[str, Any]:
        """The whole table, as it is."""
        return dict(self._values)


def is_number(value: Any) -> bool:
    """Whether a value of JSON is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)


def is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False
