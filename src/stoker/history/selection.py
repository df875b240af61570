"""Which runs of a list, and in which order.

Invariant: a run without a value comes last in either order, and fits no filter on that value.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath

from stoker.errors import BadRequest
from stoker.run.listing import STATES, RunSummary
from stoker.text import shown

TEXTS: Mapping[str, Callable[[RunSummary], str]] = {
    "name": lambda run: run.name,
    "model": lambda run: run.model,
    "state": lambda run: "" if run.problem else run.state,
    "limit": lambda run: run.limit,
    "recipe": lambda run: run.recipe,
    "data": lambda run: PurePath(run.data).name,
}
"""Keys whose values are texts."""
NUMBERS: Mapping[str, Callable[[RunSummary], float | None]] = {
    "best": lambda run: run.best,
    "hours": lambda run: None if run.problem else run.hours,
    "dollars": lambda run: run.dollars,
    "epochs": lambda run: run.epochs_done,
    "ranks": lambda run: run.ranks,
    "last": lambda run: run.last,
}
"""Keys whose values are numbers."""
FILTER_KEYS = (*TEXTS, *(key for key in NUMBERS if key != "last"))
SORT_KEYS = ("name", "model", "state", "best", "hours", "dollars", "last")
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_FILTER = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)


@dataclass(frozen=True)
class RunFilter:
    """One condition on a run."""

    key: str
    comparison: str
    text: str
    """The value: a number, or a pattern such as *mobilenet*."""
    number: float = 0.0

    def fits(self, run: RunSummary) -> bool:
        if self.key in TEXTS:
            value = TEXTS[self.key](run)
            return bool(value) and fnmatchcase(value, self.text) == (self.comparison == "=")
        number = NUMBERS[self.key](run)
        return number is not None and COMPARISONS[self.comparison](number, self.number)


def parse_filter(text: str) -> RunFilter:
    """The filter of a text such as model=resnet18, name=*mobilenet*, best>0.7 or dollars>=1. Raises
    BadRequest, which lists the keys."""
    match = _FILTER.fullmatch(text)
    if match is None or match[1] not in FILTER_KEYS or not match[3]:
        raise BadRequest(
            f"--filter {shown(text)}: expected KEY=VALUE, or KEY>NUMBER in quotes, such as "
            f"'best>0.7'; the keys are {', '.join(FILTER_KEYS)}"
        )
    key, comparison, value = match.groups()
    if key in NUMBERS:
        return RunFilter(key, comparison, value, number_of(text, value))
    if comparison not in ("=", "!="):
        raise BadRequest(
            f"--filter {shown(text)}: {key} is a text, so only = and != compare it; numbers are "
            f"{', '.join(key for key in FILTER_KEYS if key in NUMBERS)}"
        )
    if key == "state" and not any(fnmatchcase(state, value) for state in STATES):
        raise BadRequest(f"--filter {shown(text)}: the states are {', '.join(STATES)}")
    return RunFilter(key, comparison, value)


def number_of(text: str, value: str) -> float:
    """The number of a filter, also of 70%. Raises BadRequest."""
    try:
        number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise BadRequest(f"--filter {shown(text)}: '{shown(value)}' is not a number")
    return number


def fitting_runs(runs: Iterable[RunSummary], filters: Sequence[RunFilter]) -> list[RunSummary]:
    """The runs that fit every filter."""
    return [run for run in runs if all(one.fits(run) for one in filters)]


def in_order(runs: Iterable[RunSummary], key: str, *, descending: bool = False) -> list[RunSummary]:
    """The runs by a key of SORT_KEYS; those with equal values by name. Raises BadRequest for
    another key."""
    if key not in SORT_KEYS:
        raise BadRequest(f"--sort {shown(key)}: the keys are {', '.join(SORT_KEYS)}")
    value: Callable[[RunSummary], str | float | None] = TEXTS.get(key) or NUMBERS[key]
    by_name = sorted(runs, key=lambda run: (run.name, run.path))
    pairs = [(value(run), run) for run in by_name]
    known = [(one, run) for one, run in pairs if one not in (None, "")]
    known.sort(key=lambda pair: pair[0] or 0, reverse=descending)
    return [run for _, run in known] + [run for one, run in pairs if one in (None, "")]
