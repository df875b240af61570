"""A benchmark's table as one HTML page that needs nothing else.

Invariants: no script, no font and no address of another file; a policy in the page forbids them
too. Every text that comes from a result file is escaped. It follows the reader's light or dark
setting, and scrolls sideways on a narrow screen.
"""

from __future__ import annotations

from collections import defaultdict

from stoker.plan.bench.table import BenchTable, TableRow, group_of
from stoker.show.bench.columns import COLUMNS, MEANINGS, TableColumn, is_used, outcome
from stoker.show.bench.frontier_svg import frontier_svg, safe
from stoker.text import plural

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
STYLE = """
:root{color-scheme:light dark;--ink:#1d2126;--soft:#5b6570;--line:#d9dee3;--paper:#fff;
--stripe:#f6f8fa;--bad:#a33c00;--good:#0a6b4b}
@media(prefers-color-scheme:dark){:root{--ink:#e4e7ea;--soft:#9aa5b1;--line:#343a41;
--paper:#15181c;--stripe:#1b1f24;--bad:#ff9d66;--good:#56d0a4}}
body{margin:0 auto;padding:2rem 1.5rem 4rem;max-width:80rem;background:var(--paper);
color:var(--ink);font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 1rem}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .5rem;text-align:left;border-bottom:1px solid var(--line);
white-space:nowrap;vertical-align:top}
th{color:var(--soft);font-weight:600;border-bottom-width:2px}
tbody tr:nth-child(even){background:var(--stripe)}.n{text-align:right}
.why{color:var(--bad);white-space:normal;min-width:22rem}.best{color:var(--good);font-weight:600}
.soft,dd{color:var(--soft)}dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}
dt{font-weight:600}dd{margin:0}svg{max-width:100%;height:auto}
svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg text.small{font-size:11.5px}
.axis{fill:none;stroke:var(--soft)}.grid{stroke:var(--line)}
.frontier{fill:none;stroke:var(--soft);stroke-width:2;stroke-dasharray:5 4}
"""


def html_page(table: BenchTable) -> str:
    """The page, to its last line."""
    rows = list(table.rows)
    columns = [column for column in COLUMNS if is_used(column, rows)]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Training benchmark</title><style>{STYLE}</style></head><body>",
            "<h1>Training benchmark</h1>",
            *machines(table),
            "<h2>Rows</h2>",
            '<div class="wide"><table><thead><tr>',
            *(f"<th{number_class(column)}>{safe(column.title)}</th>" for column in columns),
            "</tr></thead><tbody>",
            *(table_row(row, columns) for row in rows),
            "</tbody></table></div>",
            *notes(table),
            *frontiers(table),
            *meanings(columns),
            "</body></html>\n",
        ]
    )


def number_class(column: TableColumn) -> str:
    return ' class="n"' if column.is_number else ""


def machines(table: BenchTable) -> list[str]:
    parts = ["<dl>"]
    for letter, result in table.machines:
        price = result.price.text() if result.price else "no price given"
        versions = result.environment.get("versions")
        torch = versions.get("torch") if isinstance(versions, dict) else None
        words = (
            f"{result.machine}; {price}; {plural(result.data.images, 'image')} of "
            f"{plural(result.data.classes, 'class')}; recipe {result.recipe_name}; "
            f"{plural(result.limits.repeats, 'repeat')} of {plural(result.limits.steps, 'step')}; "
            f"torch {torch}; settings {result.config_hash}; {result.created[:10]}"
        )
        parts.append(f"<dt>{safe(letter)}</dt><dd>{safe(words)}</dd>")
    return [*parts, "</dl>"]


def table_row(row: TableRow, columns: list[TableColumn]) -> str:
    """A row; where it has no figures, the reason stands over all their columns."""
    reason = outcome(row)
    names = [column for column in columns if column.names_cell or not reason]
    cells = [cell(row, column) for column in names]
    if reason:
        over = len(columns) - len(names)
        cells.append(f'<td class="why" colspan="{over}">{safe(reason)}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def cell(row: TableRow, column: TableColumn) -> str:
    text = safe(column.text(row))
    if column.title == "$/epoch" and row.on_frontier:
        return f'<td class="n best" title="on the frontier">{text}</td>'
    return f"<td{number_class(column)}>{text}</td>"


def notes(table: BenchTable) -> list[str]:
    if not table.notes:
        return []
    return ["<h2>Notes</h2>", "<ul>", *(f"<li>{safe(note)}</li>" for note in table.notes), "</ul>"]


def frontiers(table: BenchTable) -> list[str]:
    """A picture for each model, size, recipe and set with at least two priced rows."""
    groups: defaultdict[str, list[TableRow]] = defaultdict(list)
    for row in table.rows:
        groups[group_of(row.result, row.row)].append(row)
    letters = [letter for letter, _ in table.machines]
    parts = []
    for rows in groups.values():
        if picture := frontier_svg(rows, letters):
            name = f"{rows[0].row.cell.model}, {rows[0].row.cell.image_size} px"
            parts += [f"<h2>Time and cost: {safe(name)}</h2>", picture]
    if parts:
        parts.append(
            '<p class="soft">Filled dots are the frontier: no other row is both faster and '
            "cheaper. A label has the machine, its ranks, the batch and the precision.</p>"
        )
    return parts


def meanings(columns: list[TableColumn]) -> list[str]:
    titles = [column.title for column in columns if column.title in MEANINGS]
    rows = [f"<dt>{safe(title)}</dt><dd>{safe(MEANINGS[title])}</dd>" for title in titles]
    return ["<h2>Columns</h2>", "<dl>", *rows, "</dl>"]
