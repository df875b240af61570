"""stoker bench table FILE...: results of several machines as one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stoker.cli.flags import Parser
from stoker.cli.streams import check_output, write_output
from stoker.errors import FINISHED, BadRequest
from stoker.text import say, shown


def parser() -> Parser:
    table = Parser(
        prog="stoker bench table",
        usage="stoker bench table FILE... [--markdown | --csv] [--html OUT]",
        description="Show the rows of result files of 'stoker bench train' as one table. Rows are "
        "compared only within the same model, image size, batch, precision, recipe and set, and "
        "differ only where their intervals part. A file whose figures contradict each other is "
        "refused.",
        examples=(
            "stoker bench table bench-a.json bench-b.json",
            "stoker bench table bench-*.json --html bench.html",
        ),
    )
    add = table.add_argument
    add("files", metavar="FILE", nargs="*", help="what 'stoker bench train' wrote")
    kinds = table.add_mutually_exclusive_group()
    kinds.add_argument("--markdown", action="store_true", help="print Markdown")
    kinds.add_argument("--csv", action="store_true", help="print CSV: every figure, without units")
    help = "also write a page with the time/cost frontier, which needs nothing else"
    add("--html", default="", metavar="OUT", help=help)
    return table


def run(words: Sequence[str]) -> int:
    parsed = parser().parse(words)
    if not parsed.files:
        raise BadRequest("no result file is named: stoker bench table FILE...")
    check_output("--html", parsed.html)

    from stoker.plan.bench.result import read_result
    from stoker.plan.bench.table import table_of
    from stoker.show.bench.html_page import html_page
    from stoker.show.bench.progress import terminal_width
    from stoker.show.bench.terminal import table_lines
    from stoker.show.bench.text_tables import csv_text, markdown_lines

    table = table_of([read_result(Path(file)) for file in parsed.files])
    if parsed.csv:
        say(*csv_text(table).splitlines(), wrap=False)
    elif parsed.markdown:
        say(*markdown_lines(table), wrap=False)
    else:
        say(*table_lines(table, terminal_width()))
    if parsed.html:
        write_output("--html", parsed.html, html_page(table).encode("utf-8", "replace"))
        if not (parsed.csv or parsed.markdown):
            say(f"the page: {shown(parsed.html)}")
    return FINISHED
