"""Whether figures agree with each other: images a second with seconds an epoch, dollars with hours.

Invariants: nothing is corrected. Figures that disagree by more than their rounding are named, with
the one that follows from the others. Pure functions of numbers; no figure is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.plan.bench.rows import ENOUGH, BenchRow
from stoker.text import clock, rough

ROUNDING = 0.005
"""The share by which two figures may differ because each was rounded to three digits."""
MOST_SPEEDUP = 1.05
"""Ranks that are faster together than this multiple of one rank each: something else changed."""


def agrees(stated: float, computed: float, rounding: float = ROUNDING) -> bool:
    return abs(stated - computed) <= rounding * max(abs(stated), abs(computed))


def number(value: float) -> str:
    """A figure with four digits or more, and no exponent where it is large."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def epoch_contradiction(
    images_per_s: float, epoch_s: float, images: int, rounding: float = ROUNDING
) -> str:
    """What is wrong with a rate and the time of an epoch of so many images; empty if nothing."""
    right_s = images / images_per_s
    if agrees(epoch_s, right_s, rounding):
        return ""
    return (
        f"{number(images_per_s)} images/s and {number(epoch_s)} s an epoch disagree: at that rate "
        f"{images:,} images take {number(right_s)} s"
    )


def dollar_contradiction(
    dollars_per_hour: float, seconds: float, dollars: float, rounding: float = ROUNDING
) -> str:
    """What is wrong with a price, a duration and the dollars for it; empty if nothing."""
    right = dollars_per_hour * seconds / 3600
    if agrees(dollars, right, rounding):
        return ""
    return (
        f"${number(dollars)} for {clock(seconds)} at ${number(dollars_per_hour)} an hour disagree: "
        f"it is ${number(right)}"
    )


def speedup_note(row: BenchRow, single: BenchRow) -> str:
    """What is wrong with a row of several ranks beside one of a single rank; empty if nothing.
    Only where the intervals say so: the slowest of one against the fastest of the other."""
    if row.speed is None or single.speed is None:
        return ""
    most = MOST_SPEEDUP * row.cell.ranks
    if row.speed.low <= most * single.speed.high:
        return ""
    return (
        f"{row.cell.label()}: {row.speed.median / single.speed.median:.2f} times as fast as one "
        f"rank, more than {row.cell.ranks} ranks can be: something else changed between the two"
    )


def speedup_notes(rows: Sequence[BenchRow]) -> list[str]:
    """The notes about rows of several ranks, each beside the fastest fitting row of one rank."""
    several = [(row, single_rank(row, rows)) for row in rows if row.cell.ranks > 1]
    notes = [speedup_note(row, single) for row, single in several if single]
    return [note for note in notes if note]


def single_rank(row: BenchRow, rows: Iterable[BenchRow]) -> BenchRow | None:
    """The row of one rank to compare with: the fastest of the same model, size and precision, with
    as many images in its batch as all of the ranks have, or as one of them has."""
    cell = row.cell
    sizes = (cell.batch_size, cell.batch_size // cell.ranks)
    same = [
        other
        for other in rows
        if other.cell.ranks == 1
        and other.speed is not None
        and (other.cell.model, other.cell.image_size) == (cell.model, cell.image_size)
        and other.cell.precision == cell.precision
        and other.cell.batch_size in sizes
    ]
    return max(same, key=lambda one: one.speed.median if one.speed else 0.0, default=None)


def precision_notes(rows: Sequence[BenchRow]) -> list[str]:
    """A sentence for each row in fewer bits that is no faster than fp32, where enough repeats say
    so: what the hardware does not compute natively is emulated, or conversions cost more."""
    plain = {plain_key(row): row for row in rows if row.cell.precision == "fp32"}
    notes = []
    for row in rows:
        other = plain.get(plain_key(row))
        if row.cell.precision == "fp32" or other is None:
            continue
        if row.speed is None or other.speed is None:
            continue
        if min(row.speed.count, other.speed.count) < ENOUGH or row.speed.low > other.speed.high:
            continue
        factor = row.speed.median / other.speed.median
        slower = row.speed.high < other.speed.low
        words = f"{rough(1 / factor, 2)} times as slow as" if slower else "no faster than"
        notes.append(f"{row.cell.label()}: {words} fp32 on this machine; use fp32 here")
    return notes


def plain_key(row: BenchRow) -> tuple[str, int, int, int]:
    cell = row.cell
    return cell.model, cell.image_size, cell.batch_size, cell.ranks
