"""A benchmark's table as people read it: terminal, Markdown, CSV, HTML."""

from __future__ import annotations

import csv
import io
import re
from html.parser import HTMLParser

import pytest

from bench_results import DAY, failed, result, row, seed_table
from golden import check_golden
from stoker.plan.bench.reproduce import Reproduction
from stoker.plan.bench.table import BenchTable, table_of
from stoker.show.bench.columns import dollars, three_digits
from stoker.show.bench.html_page import html_page
from stoker.show.bench.progress import (
    begin_lines,
    difference_lines,
    reproduction_line,
    row_line,
)
from stoker.show.bench.terminal import table_lines
from stoker.show.bench.text_tables import CSV_TITLES, csv_text, markdown_lines

HOSTILE = (
    "</title><script>alert(1)</script>\"'><img src=x onerror=alert(2)>|`[a](http://b)\x1b[31m&"
)
VOID = {"meta", "img", "br", "link", "input"}


def hostile_table() -> BenchTable:
    bad = result(
        row(100.0, model=HOSTILE),
        row(150.0, model=HOSTILE, batch_size=8),
        failed("crashed", HOSTILE, model=HOSTILE, ranks=2),
        machine=HOSTILE,
        recipe_name=HOSTILE,
        created=HOSTILE[:40],
        environment={"versions": {"torch": HOSTILE}, "processor": HOSTILE},
    )
    return table_of([bad, bad])


class Tags(HTMLParser):
    """Which tags a page has, and which are left open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_terminal_golden() -> None:
    table = table_of(seed_table())
    lines = []
    for width in (80, 160):
        text = table_lines(table, width)
        body = [line for line in text if line.startswith(("on ", "A  resnet", "B  resnet"))]
        assert body and max(map(len, body)) <= width
        lines += [f"{width} columns", *text, ""]
    lines += ["one machine", *table_lines(table_of(seed_table()[:1]), 80)]
    check_golden("bench_terminal", lines)


def test_markdown_golden() -> None:
    check_golden("bench_markdown", markdown_lines(table_of(seed_table())))


def test_progress_golden() -> None:
    from pathlib import Path

    whole = seed_table()[0]
    cells = [one.cell for one in whole.rows]
    lines = begin_lines(whole, cells, Path("bench.json"))
    lines += [row_line(one, whole, cells) for one in whole.rows]
    lines += difference_lines([]) + difference_lines(["torch (2.8, now 2.9)"])
    pairs = [(row(100.0), row(101.0)), (row(100.0), failed("crashed", "why"))]
    lines += [reproduction_line(Reproduction(*pair)) for pair in pairs]
    check_golden("bench_progress", lines)


@pytest.mark.parametrize("table", [table_of(seed_table()), table_of([result()]), hostile_table()])
def test_a_page_needs_nothing_else(table: BenchTable) -> None:
    page = html_page(table)
    tags = Tags(page)
    assert not tags.open
    assert not tags.names & {"script", "img", "link", "iframe", "object", "a", "base", "form"}
    assert not {name for name in tags.attributes if name.startswith("on")}
    assert not tags.attributes & {"src", "href", "srcset", "action"}
    assert "url(" not in page and "@import" not in page and "\x1b" not in page
    assert "default-src 'none'" in page


def test_a_page_has_every_row_and_the_frontier() -> None:
    page = html_page(table_of(seed_table()))
    assert page.count("<tr>") == 1 + 9 or page.count("<tr>") == 10
    assert page.count("<circle") == 6
    assert len(re.findall(r'<circle[^>]* fill="#', page)) == 2
    assert 'class="frontier"' in page
    assert "SIGABRT" in page
    assert "<svg" not in html_page(table_of([result(row(), price=None)]))


def test_hostile_text_stays_in_its_cell() -> None:
    table = hostile_table()
    for line in markdown_lines(table):
        assert "<script" not in line.replace("\\<", "") and "\x1b" not in line
    bars = {
        len(re.findall(r"(?<!\\)\|", line)) for line in markdown_lines(table) if "|" in line[:1]
    }
    assert len(bars) == 1
    assert all("\x1b" not in line for line in table_lines(table, 100))
    cells = list(csv.reader(io.StringIO(csv_text(table))))
    assert {len(one) for one in cells} == {len(CSV_TITLES)}


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@x", "=cmd|' /C calc'!A0"])
def test_a_text_is_no_formula(text: str) -> None:
    rows = list(csv.reader(io.StringIO(csv_text(table_of([result(row(), machine=text)])))))
    assert rows[1][0] == "'" + text


def test_csv_has_every_figure() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(table_of(seed_table())))))
    assert len(rows) == 9
    first = rows[0]
    assert float(first["images_per_s"]) == pytest.approx(104)
    seconds, price = float(first["seconds_per_epoch"]), float(first["dollars_per_hour"])
    assert seconds == pytest.approx(12_000 / 104)
    assert float(first["dollars_per_epoch"]) == pytest.approx(seconds / 3600 * price)
    assert (first["machine"], first["measured_at"]) == ("p3.8xlarge", DAY)
    assert (rows[2]["outcome"], rows[2]["images_per_s"]) == ("out of memory", "")


def test_an_empty_table() -> None:
    assert table_lines(table_of([result()]), 80) == ["no rows yet"]
    assert markdown_lines(table_of([result()]))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.000574, "$0.000574"), (0.5, "$0.5"), (4.567, "$4.57"), (1234.5, "$1,234")],
)
def test_dollars(value: float | None, text: str) -> None:
    assert dollars(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0.123, "0.12"), (9.999, "10.0"), (99.96, "100"), (1e4, "10,000")],
)
def test_three_digits(value: float | None, text: str) -> None:
    assert three_digits(value) == text
