"""A benchmark's table as Markdown and as CSV.

Invariants: text from a result file cannot end a cell, begin a tag or become a formula of a
spreadsheet. CSV has plain numbers without units, Markdown those of the terminal.
"""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from stoker.plan.bench.table import BenchTable, TableRow
from stoker.show.bench.columns import COLUMNS, is_used, outcome
from stoker.text import harmless_cell, plural, printable

_MARKED = re.compile(r"([\\`*_\[\]<>|&])")
CSV_TITLES = (
    *("machine", "model", "image_size", "batch_size", "precision", "ranks", "outcome", "reason"),
    *("images_per_s", "low", "high", "repeats", "seconds_per_epoch", "data_share", "limit"),
    *("memory_bytes", "mfu", "dollars_per_epoch", "dollars_per_hour", "price_source"),
    *("price_date", "compared", "on_frontier", "cold_images_per_s", "cached_before"),
    *("warm_up_s", "first_step_s", "setup_s", "recipe", "images", "set_fingerprint"),
    *("measured_at", "config_hash"),
)


def markdown_lines(table: BenchTable) -> list[str]:
    """A legend, the table and the notes."""
    rows = list(table.rows)
    columns = [column for column in COLUMNS if is_used(column, rows)]
    lines = []
    for letter, result in table.machines:
        price = f", {marked(result.price.text())}" if result.price else ""
        lines.append(
            f"- **{letter}**: {marked(result.machine)}{price}; "
            f"{plural(result.data.images, 'image')}; recipe {marked(result.recipe_name)}"
        )
    lines += ["", "| " + " | ".join(column.title for column in columns) + " |"]
    lines.append("|" + "|".join(" ---: " if c.is_number else " --- " for c in columns) + "|")
    for row in rows:
        cells = [marked(column.text(row)) for column in columns]
        if reason := outcome(row):
            place = next(n for n, column in enumerate(columns) if not column.names_cell)
            cells[place] = marked(reason)
        lines.append("| " + " | ".join(cells) + " |")
    notes = [f"- {marked(note)}" for note in table.notes]
    return [*lines, *(["", *notes] if notes else [])]


def marked(text: str) -> str:
    """A text that Markdown shows as it is."""
    return _MARKED.sub(r"\\\1", printable(text))


def csv_text(table: BenchTable) -> str:
    """The rows as CSV, with a line of titles."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_TITLES)
    for row in table.rows:
        writer.writerow([harmless_cell(value) for value in csv_values(row)])
    return out.getvalue()


def csv_values(row: TableRow) -> list[Any]:
    result, one, cell = row.result, row.row, row.row.cell
    speed, figures, price = one.speed, one.figures, result.price
    return [
        *(result.machine, cell.model, cell.image_size, cell.batch_size, cell.precision),
        *(cell.ranks, one.outcome, one.reason),
        *((speed.median, speed.low, speed.high, speed.count) if speed else (None,) * 4),
        row.epoch_s,
        *((figures.data_share, figures.limit) if figures else (None, None)),
        *(figures.memory_bytes if figures else None, one.mfu, row.epoch_dollars),
        *((price.dollars, price.source, price.date) if price else (None,) * 3),
        *(row.compared, row.on_frontier),
        *((figures.cold_images_per_s, figures.cached_before) if figures else (None, None)),
        *(
            (figures.warm_up_s, figures.first_step_s, figures.setup_s)
            if figures
            else (None, None, None)
        ),
        *(result.recipe_name, result.data.images, result.data.fingerprint),
        *(one.measured_at, result.config_hash),
    ]
