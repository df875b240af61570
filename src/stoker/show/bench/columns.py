"""The columns of a benchmark's table, the same in the terminal, in Markdown, CSV and HTML.

Invariants: a figure that is not known is empty, never zero. A row without figures says why. All
text that comes from a result file is printable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stoker.plan.bench.rows import OK
from stoker.plan.bench.table import TableRow
from stoker.text import printable, size


@dataclass(frozen=True)
class TableColumn:
    """One column: its title, its text, and how soon it is left out where there is no room."""

    title: str
    text: Callable[[TableRow], str]
    rank: int
    """0: never left out; else the higher goes first."""
    is_number: bool = True
    names_cell: bool = False
    """Whether it names the cell: also filled in rows without figures."""


def dollars(value: float | None) -> str:
    """An amount with three digits, such as $0.0123 or $4.56."""
    if value is None:
        return ""
    if value >= 100:
        return f"${value:,.0f}"
    return f"${value:.2f}" if value >= 1 else f"${value:.3g}"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def three_digits(value: float | None) -> str:
    """A figure with three digits and no exponent, such as 0.123, 12.3 or 1,234."""
    if value is None:
        return ""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def rate(row: TableRow) -> str:
    return three_digits(row.row.speed.median) if row.row.speed else ""


def spread(row: TableRow) -> str:
    """Half the interval as a share of the median; empty for one repeat."""
    speed = row.row.speed
    return f"{speed.half / speed.median:.1%}" if speed and speed.count > 1 else ""


def cold_rate(row: TableRow) -> str:
    """Of the first pass; in brackets where the set was in memory before."""
    figures = row.row.figures
    if figures is None:
        return ""
    text = three_digits(figures.cold_images_per_s)
    is_cold = figures.cached_before is not None and figures.cached_before <= 0.05
    return text if is_cold else f"({text})"


def warm_up(row: TableRow) -> str:
    return three_digits(row.row.figures.warm_up_s) if row.row.figures else ""


def first_step(row: TableRow) -> str:
    return three_digits(row.row.figures.first_step_s) if row.row.figures else ""


def data_share(row: TableRow) -> str:
    return share(row.row.figures.data_share) if row.row.figures else ""


def limit(row: TableRow) -> str:
    return printable(row.row.figures.limit) if row.row.figures else ""


def memory(row: TableRow) -> str:
    return size(row.row.figures.memory_bytes) if row.row.figures else ""


COLUMNS = (
    TableColumn("on", lambda row: row.letter, 0, is_number=False, names_cell=True),
    TableColumn(
        "model", lambda row: printable(row.row.cell.model), 0, is_number=False, names_cell=True
    ),
    TableColumn("px", lambda row: str(row.row.cell.image_size), 0, names_cell=True),
    TableColumn("batch", lambda row: str(row.row.cell.batch_size), 0, names_cell=True),
    TableColumn("prec", lambda row: row.row.cell.precision, 0, is_number=False, names_cell=True),
    TableColumn("ranks", lambda row: str(row.row.cell.ranks), 0, names_cell=True),
    TableColumn("img/s", rate, 0),
    TableColumn("+-", spread, 0),
    TableColumn("s/epoch", lambda row: three_digits(row.epoch_s), 1),
    TableColumn("data", data_share, 4),
    TableColumn("limit", limit, 3, is_number=False),
    TableColumn("memory", memory, 5),
    TableColumn("MFU", lambda row: share(row.row.mfu), 6),
    TableColumn("$/epoch", lambda row: dollars(row.epoch_dollars), 2),
    TableColumn("compared", lambda row: row.compared, 7, is_number=False),
    TableColumn("cold", cold_rate, 8),
    TableColumn("warm-up s", warm_up, 9),
    TableColumn("1st step s", first_step, 10),
)
MEANINGS = {
    "img/s": "images a second, the median of the repeats",
    "+-": "half the interval of the median",
    "data": "share of a step that the model waits for images",
    "limit": "what limits training",
    "memory": "highest of a rank: allocated on a GPU, else resident",
    "compared": "within the same model, px, batch, precision, recipe and set: fastest and a share "
    "below it where intervals part; highest and same where they overlap; ? below 5 repeats",
    "cold": "images/s of the first pass, from the disk; in brackets where it was in memory",
    "warm-up s": "excluded from img/s, compiling included",
    "1st step s": "the first step alone, which compiles where that was asked for",
}


def is_used(column: TableColumn, rows: list[TableRow]) -> bool:
    """Whether a column says anything: not one that is empty everywhere."""
    return any(column.text(row) for row in rows)


def outcome(row: TableRow) -> str:
    """What stands in place of the figures; empty where there are some."""
    if row.row.outcome == OK:
        return ""
    return f"{row.row.outcome}: {printable(row.row.reason)}"
