"""`explain` of several runs, below the table: what differs between them, also in their results.

Invariants: at most MOST_LINES lines, none wider than the table. Equal things are not listed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.history.differences import (
    FINGERPRINT,
    RunDifference,
    RunTraits,
    accuracy_difference,
    differences,
    value_text,
)
from stoker.price.hourly import HourlyPrice
from stoker.show.compare import WIDTH, name_cell
from stoker.show.cost import money
from stoker.text import cut, plural, seconds, shown

MOST_LINES = 20
NAMES = 12
"""Settings at most whose names alone are listed, where there is no space for their values."""
LEAST_CHANGE = 0.005
"""A smaller change of a speed or a cost is none."""
GROUP_WIDTH, NAME_WIDTH, VALUE_WIDTH, EFFECT_WIDTH = 8, 20, 20, 16
SPACE = WIDTH - GROUP_WIDTH - 4
"""Columns for the differences of a group."""


@dataclass(frozen=True)
class DifferenceLine:
    """Some differences of one group."""

    group: str
    text: str
    names: tuple[str, ...]


def difference_lines(
    runs: Sequence[RunTraits], price: HourlyPrice | None = None, most: int = MOST_LINES
) -> list[str]:
    """What differs between at least two runs; of two also their results; none for fewer. A
    `price` counts in place of those that the runs recorded."""
    if len(runs) < 2:
        return []
    rows = differences(runs)
    if len(runs) > 2:
        head = "what differs:" if rows else "no setting differs"
        texts = [(row, group_text(row, runs)) for row in rows]
        return ["", head, *listed(texts, most - 2, of_a_line=1)]
    one, other = runs
    names = f"from {name_cell(one.run.path)} to {name_cell(other.run.path)}"
    head = f"what differs {names}:" if rows else f"no setting differs {names}"
    effects = effect_lines(one, other, price)
    lines = listed([(row, pair_text(row.values)) for row in rows], most - 2 - len(effects))
    return ["", head, *lines, *effects]


def listed(
    rows: Sequence[tuple[RunDifference, str]], most: int, of_a_line: int = MOST_LINES
) -> list[str]:
    """The differences, at most `of_a_line` in a line where they fit. Of too many lines the last
    ones of the longest group are left out, and named in one line."""
    lines: list[DifferenceLine] = []
    for row, text in rows:
        item = f"{cut(row.name, NAME_WIDTH)} {text}"
        last = lines[-1] if lines else DifferenceLine("", "", ())
        has_space = len(last.names) < of_a_line and len(last.text) + len(item) + 2 <= SPACE
        if last.group == row.group and has_space:
            lines[-1] = DifferenceLine(row.group, f"{last.text}; {item}", (*last.names, row.name))
        else:
            lines.append(DifferenceLine(row.group, item, (row.name,)))
    left_out: list[str] = []
    while len(lines) + bool(left_out) > most:
        counts = Counter(line.group for line in lines)
        longest = max(counts, key=counts.__getitem__)
        place = max(place for place, line in enumerate(lines) if line.group == longest)
        left_out = [*lines.pop(place).names, *left_out]
    texts = [f"  {line.group:<{GROUP_WIDTH}}  {line.text}" for line in lines]
    if left_out:
        names = ", ".join(cut(name, NAME_WIDTH) for name in left_out[:NAMES])
        texts.append(shortened(f"  and {len(left_out)} more: {names}", WIDTH))
    return texts


def shortened(text: str, width: int) -> str:
    """A text that is printable already, in at most so many columns."""
    return text if len(text) <= width else f"{text[: width - 2]}.."


def pair_text(values: Sequence[Any]) -> str:
    before, after = (cut(value_text(value), VALUE_WIDTH) for value in values)
    if before == after:  # only their ends differ
        before, after = (end_of(value_text(value), VALUE_WIDTH) for value in values)
    return f"{before} -> {after}"


def end_of(text: str, width: int) -> str:
    """The end of a text as `shown`, in at most so many columns."""
    return f"..{shown(text)[2 - width :]}"


def group_text(row: RunDifference, runs: Sequence[RunTraits]) -> str:
    """Each value with the runs that have it; with their number where the names need much space."""
    space, text = SPACE - len(cut(row.name, NAME_WIDTH)) - 1, ""
    for most in (len(runs), 1, 0):
        values = (cut(value_text(row.values[places[0]]), VALUE_WIDTH) for places in row.groups)
        names = (names_text(places, runs, most) for places in row.groups)
        text = "; ".join(f"{value}: {name}" for value, name in zip(values, names, strict=True))
        if len(text) <= space:
            return text
    return shortened(text, space)


def names_text(places: Sequence[int], runs: Sequence[RunTraits], most: int) -> str:
    names = [name_cell(runs[place].run.path) for place in places]
    if not most:
        return names[0] if len(names) == 1 else plural(len(names), "run")
    more = f" +{len(names) - most}" if len(names) > most else ""
    return ", ".join(names[:most]) + more


Effect = tuple[str, str]
"""What differs in the results of two runs, and how; the first is empty where the text goes on."""


def effect_lines(one: RunTraits, other: RunTraits, price: HourlyPrice | None) -> list[str]:
    """How the results of two runs differ; none where nothing can be compared, or all is equal."""
    lines = [f"  {name:<{EFFECT_WIDTH}}  {text}" for name, text in effects(one, other, price)]
    return ["how the results differ:", *lines] if lines else []


def effects(one: RunTraits, other: RunTraits, price: HourlyPrice | None = None) -> list[Effect]:
    """How the results of two runs differ; none where nothing can be compared, or all is equal."""
    rates = (one.images_per_s, other.images_per_s)
    epochs = (one.epoch_s, other.epoch_s)
    dollars = (one.epoch_dollars(price), other.epoch_dollars(price))
    rows = [
        *accuracy_effects(one, other),
        *ratio_effect("images a second", rates, lambda rate: f"{rate:,.0f}"),
        *ratio_effect("time an epoch", epochs, seconds),
        *ratio_effect("dollars an epoch", dollars, money),
    ]
    if one.limit and other.limit and one.limit != other.limit:
        rows.append(("limit", f"{cut(one.limit, 20)} -> {cut(other.limit, 20)}"))
    return rows


def accuracy_effects(one: RunTraits, other: RunTraits) -> list[Effect]:
    """The accuracy of both with the interval of its difference, and where they were evaluated, if
    that is not at the same epoch."""
    change = accuracy_difference(one, other)
    if change is None or not one.top1 or not other.top1 or not one.evaluation:
        return []
    points, low, high = (f"{100 * x:+.1f}" for x in (change.difference, change.low, change.high))
    shares = f"{one.top1.share:.1%} -> {other.top1.share:.1%}"
    noise = "within the noise of the evaluated images"
    if len({run.settings[FINGERPRINT] for run in (one, other)}) > 1:
        noise = "of different images: the data sets differ"
    elif not change.is_noise:
        noise = "more than the noise of the evaluated images (seeds add more)"
    rows = [
        ("top-1", f"{shares}: {points} points, 95% interval {low} to {high}"),
        ("", noise),
    ]
    epochs = [f"{run.evaluation['epoch']:.2f}" for run in (one, other) if run.evaluation]
    if len(set(epochs)) > 1:
        rows.append(("", f"evaluated at epoch {' and at epoch '.join(epochs)}"))
    return rows


def ratio_effect(
    name: str, values: tuple[float | None, float | None], text: Callable[[float], str]
) -> list[Effect]:
    """Two numbers and by how much the second is larger; none where one is unknown, or where they
    differ by less than LEAST_CHANGE."""
    before, after = values
    if not before or not after or abs(after / before - 1) < LEAST_CHANGE:
        return []
    return [(name, f"{text(before)} -> {text(after)} ({after / before - 1:+.0%})")]
