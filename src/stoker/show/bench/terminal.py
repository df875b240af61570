"""A benchmark's table in the terminal: as many columns as fit.

Invariants: no line is wider than the terminal, except for one that names a cell with a long model.
What is left out for want of room is named.
"""

from __future__ import annotations

from stoker.plan.bench.result import BenchResult
from stoker.plan.bench.table import BenchTable, TableRow
from stoker.show.bench.columns import COLUMNS, TableColumn, is_used, outcome
from stoker.text import plural, printable

NARROW = 60
"""Columns below which nothing more is left out."""
GAP = "  "
MOST_MODEL = 28
"""Characters of a model's name; the rest is cut."""


def table_lines(table: BenchTable, width: int) -> list[str]:
    """The legend, the table, and what must be known to read it."""
    rows = list(table.rows)
    if not rows:
        return ["no rows yet"]
    used = [column for column in COLUMNS if is_used(column, rows)]
    same_size = len({row.row.cell.image_size for row in rows}) == 1
    if len(table.machines) == 1:
        used = [column for column in used if column.title != "on"]
    if same_size:
        used = [column for column in used if column.title != "px"]
    columns, left_out = fitting(used, rows, max(width, NARROW))
    lines = [machine_line(letter, result, table) for letter, result in table.machines]
    if same_size:
        lines.append(f"images of {rows[0].row.cell.image_size} px")
    lines += ["", header(columns, rows), *(line_of(row, columns, rows) for row in rows), ""]
    lines += [reason_line(row, table) for row in rows if outcome(row)]
    lines += [f"note: {note}" for note in table.notes]
    if left_out:
        names = ", ".join(column.title for column in left_out)
        lines.append(f"left out at {width} columns: {names} (a wider terminal or --csv shows them)")
    return lines


def machine_line(letter: str, result: BenchResult, table: BenchTable) -> str:
    """A machine, its set and its price."""
    name = f"{letter}  " if len(table.machines) > 1 else ""
    price = f", {printable(result.price.text())}" if result.price else ", no price"
    data = printable(result.data.path.rstrip("/").rpartition("/")[2])
    return (
        f"{name}{printable(result.machine)}{price}; {data}, "
        f"{plural(result.data.images, 'image')}; recipe {printable(result.recipe_name)}"
    )


def reason_line(row: TableRow, table: BenchTable) -> str:
    """Why a row has no figures."""
    name = f"{row.letter}: " if len(table.machines) > 1 else ""
    return f"{name}{row.row.cell.label()}: {outcome(row)}"


def widths_of(columns: list[TableColumn], rows: list[TableRow]) -> list[int]:
    return [
        max(len(column.title), *(len(cell_text(column, row)) for row in rows)) for column in columns
    ]


def cell_text(column: TableColumn, row: TableRow) -> str:
    text = column.text(row)
    if column.title == "model" and len(text) > MOST_MODEL:
        return text[: MOST_MODEL - 1] + "…"
    return text


def fitting(
    columns: list[TableColumn], rows: list[TableRow], width: int
) -> tuple[list[TableColumn], list[TableColumn]]:
    """The columns that fit, and those left out: the least important first."""
    kept, left_out = list(columns), list[TableColumn]()
    while sum(widths_of(kept, rows)) + len(GAP) * (len(kept) - 1) > width:
        last = max(kept, key=lambda column: column.rank)
        if last.rank == 0:
            break
        kept.remove(last)
        left_out.insert(0, last)
    return kept, left_out


def aligned(column: TableColumn, text: str, width: int) -> str:
    return text.rjust(width) if column.is_number else text.ljust(width)


def header(columns: list[TableColumn], rows: list[TableRow]) -> str:
    widths = widths_of(columns, rows)
    titles = [aligned(c, c.title, w) for c, w in zip(columns, widths, strict=True)]
    return GAP.join(titles).rstrip()


def line_of(row: TableRow, columns: list[TableColumn], rows: list[TableRow]) -> str:
    """A row; where it has no figures, the outcome stands in their place. The reason is below."""
    pairs = list(zip(columns, widths_of(columns, rows), strict=True))
    failed = bool(outcome(row))
    shown = [(c, w) for c, w in pairs if c.names_cell or not failed]
    line = GAP.join(aligned(c, cell_text(c, row), w) for c, w in shown)
    return f"{line}{GAP}{row.row.outcome}" if failed else line.rstrip()
