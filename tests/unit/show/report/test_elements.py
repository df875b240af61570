"""Text becomes HTML in one place, and is escaped there."""

from __future__ import annotations

import pytest

from report_pages import HOSTILE, PageReader
from stoker.show.report.elements import (
    LONGEST_TEXT,
    Html,
    PageTable,
    bar_svg,
    folded,
    joined,
    safe,
    section,
    slug,
    table_html,
    tag,
)


@pytest.mark.parametrize("text", [HOSTILE, "<b>", '"', "'", "&amp;", "\x00", "\u202e", "\ud800"])
def test_a_text_stays_a_text(text: str) -> None:
    for page in (tag("p", text), tag("p", title=text), joined([text]), section(text, text)):
        reader = PageReader(page)
        names = {name for name, _ in reader.elements}
        assert names <= {"p", "section", "h2"}
        assert all(character.isprintable() for character in page)
        page.encode()


def test_html_is_escaped_once() -> None:
    inner = tag("b", "a < b")
    assert tag("p", inner, " & c") == "<p><b>a &lt; b</b> &amp; c</p>"
    assert safe(Html("<i>")) == "<i>"
    assert safe(f"{inner}") == "&lt;b&gt;a &amp;lt; b&lt;/b&gt;"


def test_attributes_have_the_names_of_html() -> None:
    made = tag("input", type="radio", aria_label="x", class_="y", hidden=True, name=None, id=False)
    assert made == '<input type="radio" aria-label="x" class="y" hidden>'


def test_a_long_text_is_cut_and_a_long_attribute_is_not() -> None:
    assert len(tag("p", "x" * 10**6)) < LONGEST_TEXT + 20
    assert len(tag("path", d="x" * 10**4)) > 10**4


def test_a_table_has_headings_and_aligned_numbers() -> None:
    table = PageTable("Sizes", ("file", "bytes"), [("a", "1")], frozenset({1}))
    reader = PageReader(table_html(table))
    assert [head["scope"] for head in reader.named("th")] == ["col", "col"]
    assert [cell.get("class") for cell in reader.named("td")] == [None, "n"]
    assert reader.named("div")[0]["tabindex"] == "0"


def test_a_bar_stays_inside_of_its_column() -> None:
    widths = [PageReader(bar_svg(share)).named("rect")[0]["width"] for share in (-1, 0.125, 7)]
    assert widths == ["0", "12.5", "100"]


def test_anchors_are_plain() -> None:
    assert slug("How long did it take?") == "how-long-did-it-take"
    assert slug(HOSTILE).isascii() and '"' not in slug(HOSTILE)
    assert slug("???") == "part"
    assert folded("More", "x") == "<details><summary>More</summary>x</details>"
