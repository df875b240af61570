"""The matrix of a ticket study: levels by rewind points, with the controls below each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stoker.intervals import Mean
from stoker.show.study.ticket_chart import chart_lines
from stoker.study.sweep import ENOUGH
from stoker.study.tickets.plan import percent
from stoker.study.tickets.results import Level, TicketResults
from stoker.text import plural, printable, shown
from stoker.text import size as bytes_text

if TYPE_CHECKING:  # it needs torch
    from stoker.study.tickets.size import TicketSize

COLUMNS = 4
"""Rewind points that stand side by side in 80 columns."""
KINDS = ("ticket", "random mask", "by layer", "re-initialised")
NAME, CELL = 22, 14


def result_lines(results: TicketResults, *, layers: bool = False) -> list[str]:
    """Everything that a study shows, before what it cost."""
    if results.dense is None:
        return []
    return [
        f"dense: {accuracy(results.dense)} % top-1, {plural(results.dense.count, 'run')}",
        *matrix_lines(results),
        *chart_lines(results),
        *quantile_lines(results),
        *(layer_lines(results) if layers else []),
        *conclusion(results),
    ]


def accuracy(mean: Mean | None) -> str:
    """A mean in percent, with half the width of its 95 % interval if there are enough runs."""
    if mean is None:
        return "-"
    spread = mean.half is not None and mean.count >= ENOUGH
    return f"{100 * mean.mean:.2f}" + (f" ±{100 * (mean.half or 0):.2f}" if spread else "")


def matrix_lines(results: TicketResults) -> list[str]:
    """Top-1 of tickets and of their controls; a * where a ticket is above both."""
    rewinds = results.design.rewinds
    lines: list[str] = []
    for begin in range(0, len(rewinds), COLUMNS):
        lines += block_lines(results, rewinds[begin : begin + COLUMNS])
    if any(results.wins):
        lines.append("  * its interval lies above those of both controls")
    return lines


def block_lines(results: TicketResults, rewinds: Sequence[float]) -> Iterator[str]:
    heads = "".join(f"{f'from epoch {epoch:g}':>{CELL - 1}} " for epoch in rewinds)
    yield f"  {'kept, top-1 in %':<{NAME}}{heads}".rstrip()
    for keep in results.design.keeps:
        levels = [one for one in results.levels if one.keep == keep and one.rewind in rewinds]
        kept = percent(keep)
        for kind in KINDS:
            if kind == "by layer" and not results.design.by_layer:
                continue
            cells = "".join(cell_text(results, level, kind) for level in levels)
            yield f"  {kept:<8}{kind:<{NAME - 8}}{cells}".rstrip()
            kept = ""


def cell_text(results: TicketResults, level: Level, kind: str) -> str:
    """The text of one number, as wide as a column. Re-initialised weights start at epoch 0 only,
    and stand in the first column."""
    first = level.rewind == results.design.rewinds[0]
    mean = {
        "ticket": level.ticket,
        "random mask": level.random,
        "by layer": level.by_layer,
        "re-initialised": level.reinit if first else None,
    }[kind]
    if kind == "re-initialised" and not first:
        return " " * CELL
    mark = "*" if kind == "ticket" and level.wins(results.design.replicates) else " "
    few = f" ({mean.count})" if mean and mean.count < results.design.replicates else ""
    return f"{f'{accuracy(mean)}{few}':>{CELL - 1}}{mark}"


def quantile_lines(results: TicketResults) -> list[str]:
    """The magnitude below which a share of the dense run's kernel weights lies."""
    if not results.weights:
        return []
    quantiles = results.weights["quantiles"]
    parts = [f"{share} %: {value:.4f}" for share, value in quantiles.items()]
    total, zeros = results.weights["total"], results.weights["zeros"]
    return [
        f"dense weights: {total:,} in {plural(len(results.weights['layers']), 'kernel')}, "
        f"{zeros:,} exactly zero; magnitudes below which they lie:",
        *(f"  {'   '.join(parts[n : n + 5])}" for n in range(0, len(parts), 5)),
    ]


def layer_lines(results: TicketResults) -> list[str]:
    """What the first replicate's ticket keeps of each kernel, at each level."""
    lines: list[str] = []
    for keep, facts in results.kept.items():
        kept, total = facts["kept"], facts["total"]
        lines.append(f"kept by layer, {percent(keep)}: {kept:,} of {total:,}")
        width = max(len(printable(name)) for name in facts["layers"])
        for name, (some, whole) in facts["layers"].items():
            lines.append(
                f"  {printable(name):<{width}}  {some:>9,} of {whole:>9,}  {some / whole:.1%}"
            )
    return lines


def conclusion(results: TicketResults) -> list[str]:
    """Where tickets win, and what would be needed to say so."""
    if doubts := results.doubts():
        return [f"not evidence of a ticket: {' and '.join(doubts)}"]
    if not results.wins:
        return [
            "no ticket here: at no level does the interval of the tickets lie above those of both "
            "controls"
        ]
    return [
        f"tickets win at {percent(level.keep)} from epoch {level.rewind:g}: "
        f"{accuracy(level.ticket)} against {accuracy(level.random)} of random masks and "
        f"{accuracy(level.reinit)} of re-initialised weights"
        for level in results.wins
    ]


def size_lines(size: TicketSize) -> list[str]:
    """What one ticket saves, and what it does not."""
    dense, ticket = size.dense, size.ticket
    if size.is_faster:
        speed = f"{size.speedup:.2f} times as fast"
    else:
        speed = "unstructured sparsity does not speed up this backend"
    return [
        f"one ticket, {percent(size.keep)} kept, from epoch {size.rewind:g}: {shown(size.run)}",
        f"  zeros   {size.zeros:,} of {size.numbers:,} numbers in its file",
        f"  file    {bytes_text(ticket.bytes)}, dense {bytes_text(dense.bytes)}; compressed "
        f"{bytes_text(ticket.compressed)}, dense {bytes_text(dense.compressed)}",
        f"  speed   {ticket.images_s:,.0f} images/s on {size.device}, dense "
        f"{dense.images_s:,.0f}: {speed}",
    ]
