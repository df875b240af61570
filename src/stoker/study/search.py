"""The points of a sweep: every combination of some values, or a number of random draws.

    --set lr=0.1,0.2        these values
    --set seed=0..4         whole numbers, both ends included
    --set lr=0.01..1        a range to draw from, with --trials

Invariants: the same settings give the same points in the same order. Draws are hashes, so a larger
number of trials begins with the same ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from stoker.chance import hash_of, uniform
from stoker.errors import BadRequest
from stoker.recipe.recipe import SPECS, TYPES, check_value
from stoker.recipe.resolve import parse_flag, unknown_key
from stoker.study.frozen import changes_result
from stoker.text import shown

REPLICATE = "seed"
"""The key whose values are replicates of the same settings."""
MOST_POINTS, MOST_TRIALS = 100_000, 10_000
_RANGE = re.compile(r"([^,]+)\.\.([^,]+)")
Point = dict[str, Any]


@dataclass(frozen=True)
class Axis:
    """A key of the recipe and its values, or the two ends of a range."""

    key: str
    values: tuple[Any, ...] = ()
    ends: tuple[float, float] | None = None

    def draw(self, chance: float) -> Any:
        """The value for a number in [0, 1). A range over a factor of 10 is drawn by its logarithm:
        each factor is as likely as every other."""
        if self.ends is None:
            return self.values[int(chance * len(self.values))]
        low, high = self.ends
        if low > 0 and high / low >= 10:
            value = math.exp(math.log(low) + chance * (math.log(high) - math.log(low)))
        else:
            value = low + chance * (high - low)
        return float(f"{value:.4g}")


def parse_axis(text: str) -> Axis:
    """The axis of a `--set`. Raises BadRequest, which names it."""
    key, equals, values = text.partition("=")
    key = key.strip().replace("-", "_")
    origin = f"--set {shown(text)}"
    if not equals or not values.strip():
        raise BadRequest(f"{origin}: write KEY=VALUE,VALUE,... or KEY=FIRST..LAST")
    if key not in SPECS:
        raise unknown_key(key, origin, SPECS)
    if not changes_result(key):
        raise BadRequest(f"{origin}: {key} does not change the result of a run")
    if (ends := _RANGE.fullmatch(values.strip())) and TYPES[key] in (int, float):
        return range_axis(key, origin, *ends.groups())
    parts = [part.strip() for part in values.split(";" if ";" in values else ",")]
    if TYPES[key] is bool:
        words = {"true": True, "false": False}
        if wrong := next((part for part in parts if part not in words), None):
            raise BadRequest(f"{origin}: {key} is true or false, not {shown(wrong)}")
        return Axis(key, tuple(words[part] for part in parts))
    checked = tuple(dict.fromkeys(parse_flag(key, part) for part in parts))
    return Axis(key, checked)


def range_axis(key: str, origin: str, first: str, last: str) -> Axis:
    low, high = parse_flag(key, first), parse_flag(key, last)
    if high < low:
        raise BadRequest(f"{origin} ends before it begins: write {key}={last}..{first}")
    if TYPES[key] is int:
        if high - low >= MOST_POINTS:
            raise BadRequest(f"{origin} has {high - low + 1:,} values; at most {MOST_POINTS:,}")
        return Axis(key, tuple(range(low, high + 1)))
    check_value(key, low)
    check_value(key, high)
    return Axis(key, ends=(low, high))


def parse_axes(texts: Sequence[str]) -> list[Axis]:
    """The axes of all `--set`. Raises BadRequest where one is wrong or set twice."""
    axes = [parse_axis(text) for text in texts]
    keys = [axis.key for axis in axes]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise BadRequest(f"--set {twice} stands twice: write its values in one, {twice}=A,B")
    return axes


def points_of(axes: Sequence[Axis], trials: int | None) -> list[Point]:
    """The points of a sweep: so many draws, or every combination. Raises BadRequest."""
    if not axes:
        raise BadRequest("name what to vary, such as --set lr=0.05,0.1,0.2")
    if trials is None:
        return grid_points(axes)
    if not 1 <= trials <= MOST_TRIALS:
        raise BadRequest(f"--trials must be from 1 to {MOST_TRIALS:,}, not {trials}")
    return random_points(axes, trials, 0)


def grid_points(axes: Sequence[Axis]) -> list[Point]:
    """Every combination; the replicates of one stand together. Raises BadRequest for a range."""
    if ranged := next((axis for axis in axes if axis.ends), None):
        raise BadRequest(
            f"--set {ranged.key} is a range of any number: name its values, or add --trials N"
        )
    if (count := math.prod(len(axis.values) for axis in axes)) > MOST_POINTS:
        raise BadRequest(f"this sweep has {count:,} cells; at most {MOST_POINTS:,}")
    ordered = sorted(axes, key=lambda axis: axis.key == REPLICATE)
    keys = [axis.key for axis in ordered]
    return [
        dict(zip(keys, values, strict=True)) for values in product(*(a.values for a in ordered))
    ]


def random_points(axes: Sequence[Axis], trials: int, seed: int) -> list[Point]:
    """So many draws, each with every replicate. Raises BadRequest where two draws must be equal."""
    drawn = [axis for axis in axes if axis.key != REPLICATE]
    seeds = next((axis.values for axis in axes if axis.key == REPLICATE), None)
    if not drawn:
        raise BadRequest("--trials draws from --set KEY=...: name at least one key besides seed")
    points: list[Point] = []
    number = 0
    while len(points) < trials:
        chances = [float(uniform(hash_of(seed, "sweep", number, axis.key))[0]) for axis in drawn]
        point = {axis.key: axis.draw(c) for axis, c in zip(drawn, chances, strict=True)}
        number += 1
        if point not in points:
            points.append(point)
        elif number > 100 * trials:
            raise BadRequest(
                f"--trials {trials}: there are only {len(points)} different points: take fewer, or "
                "drop --trials to run every combination"
            )
    return [{**p, REPLICATE: s} for p in points for s in seeds] if seeds else points
