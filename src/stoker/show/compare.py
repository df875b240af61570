"""`explain` of several runs: a table of one line each, at most 80 columns wide.

Invariant: a directory that cannot be read is a line with its reason; the others are still shown.
"""

from __future__ import annotations

from pathlib import Path

from stoker.errors import StokerError
from stoker.history.differences import RunTraits, traits_of
from stoker.run.directory import Run
from stoker.run.listing import name_of
from stoker.text import clock, printable

WIDTH = 80
NAME, MODEL, LIMIT = 17, 11, 10
"""Columns of the text cells. Longer texts are cut."""
DAY_S = 24 * 3600


def header() -> str:
    return line("run", "model", "epochs", "top-1", "time", "img/s", "limit", "state")


def row(path: Path) -> tuple[str, RunTraits | None]:
    """The line of a run, and what was read of it; None where it cannot be read."""
    try:
        traits = traits_of(Run(path))
        return line(name_of(path), *cells(traits)), traits
    except (StokerError, OSError) as error:
        reason = printable(str(error)).removeprefix(printable(str(path))).lstrip("/: ")
        space = WIDTH - NAME - 1
        reason = reason if len(reason) <= space else f"{reason[: space - 3]}..."
        return f"{name_cell(path):<{NAME}} {reason}", None


def line(
    name: str, model: str, epochs: str, top1: str, time: str, rate: str, limit: str, state: str
) -> str:
    texts = f"{cut(name, NAME):<{NAME}} {cut(model, MODEL):<{MODEL}}"
    numbers = f"{epochs:>7} {top1:>6} {time:>8} {rate:>6}"
    return f"{texts} {numbers} {cut(limit, LIMIT):<{LIMIT}} {state}".rstrip()


def cells(run: RunTraits) -> tuple[str, str, str, str, str, str, str]:
    """Model, epochs done and planned, latest accuracy, time, images a second, limit and state."""
    if run.epochs_done is None:
        return run.model, "-", "-", "-", "-", "-", run.state
    return (
        run.model,
        f"{int(run.epochs_done)}/{run.epochs:g}",
        f"{run.top1.share:.1%}" if run.top1 else "-",
        clock(run.total_s) if run.total_s < DAY_S else f"{run.total_s / DAY_S:.1f} d",
        f"{run.images_per_s:,.0f}" if run.images_per_s else "-",
        run.limit or "-",
        run.state,
    )


def name_cell(path: Path) -> str:
    """The name of a run as the table has it."""
    return cut(name_of(path), NAME)


def cut(text: str, width: int) -> str:
    """At most so many columns: of a long text, the beginning and the last letters."""
    text = printable(text)
    if len(text) <= width:
        return text
    tail = width // 3
    return f"{text[: width - tail - 2]}..{text[len(text) - tail :]}"
