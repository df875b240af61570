"""Elements of an HTML page, and the one place where text is escaped.

Invariants: text becomes HTML only in `tag`, which escapes every string that is not HTML already:
a mistake shows escaped text, never a foreign element. Control characters, bidirectional marks and
lone surrogates are shown as escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from stoker.text import printable

LONGEST_TEXT = 2000
"""Characters of one text in an element; longer ones are cut."""
_VOID = ("meta", "input", "img")
_SLUG = re.compile(r"[^a-z0-9]+")


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def safe(text: object) -> Html:
    """A text as HTML, in an element or in a quoted attribute."""
    if isinstance(text, Html):
        return text
    return Html(escape(printable(str(text)), quote=True))


def cut_text(text: object) -> Html:
    """A text as HTML, at most LONGEST_TEXT characters of it."""
    if isinstance(text, Html):
        return text
    words = str(text)
    return safe(f"{words[:LONGEST_TEXT]}…" if len(words) > LONGEST_TEXT else words)


def tag(element: str, *children: object, **attributes: object) -> Html:
    """An element. `class_` is the attribute class, and `_` in a name is a hyphen. An attribute that
    is None or False is left out, one that is True has no value."""
    words = [element]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{safe(value)}"')
    opening = f"<{' '.join(words)}>"
    if element in _VOID:
        return Html(opening)
    return Html(f"{opening}{''.join(map(cut_text, children))}</{element}>")


def joined(parts: Iterable[object], between: str = "") -> Html:
    """Parts one after the other; those that are not HTML are escaped."""
    return Html(between.join(map(safe, parts)))


def slug(text: str) -> str:
    """A text as the name of an anchor."""
    return _SLUG.sub("-", text.lower()).strip("-")[:60] or "part"


@dataclass(frozen=True)
class PageTable:
    """Rows of texts under their headings."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[object]]
    numbers: frozenset[int] = frozenset()
    """The columns that hold numbers: they are aligned to the right."""


def table_html(table: PageTable, class_: str | None = None) -> Html:
    """A table that scrolls sideways where it is wider than the screen."""
    heads = (
        tag("th", name, scope="col", class_="n" if place in table.numbers else None)
        for place, name in enumerate(table.columns)
    )
    rows = (
        tag("tr", *(cell(part, place in table.numbers) for place, part in enumerate(row)))
        for row in table.rows
    )
    return tag(
        "div",
        tag(
            "table",
            tag("caption", table.caption),
            tag("thead", tag("tr", *heads)),
            tag("tbody", *rows),
            class_=class_,
        ),
        class_="wide",
        tabindex="0",
        role="region",
        aria_label=table.caption,
    )


@dataclass(frozen=True)
class SortedText:
    """A text of a table, and the number by which it is sorted."""

    text: str
    key: float


def cell(part: object, is_number: bool) -> Html:
    kind = "n" if is_number else None
    if isinstance(part, SortedText):
        return tag("td", part.text, class_=kind, data_key=repr(float(part.key)))
    return tag("td", part, class_=kind)


def folded(summary: str, *content: object) -> Html:
    """Content that is shown when its heading is opened."""
    return tag("details", tag("summary", summary), *content)


def section(title: str, *content: object, note: str = "") -> Html:
    """A part of the page with its heading."""
    name = slug(title)
    return tag(
        "section",
        tag("h2", title, id=name),
        *([tag("p", note, class_="soft")] if note else []),
        *content,
        aria_labelledby=name,
    )


def bar_svg(share: float, kind: str = "") -> Html:
    """A bar of so much of its column. Its number stands beside it, so that it has no text."""
    width = round(100 * min(max(share, 0.0), 1.0), 1)
    rect = tag("rect", width=f"{width:g}", height="8", class_=kind or None)
    options = {"viewBox": "0 0 100 8", "preserveAspectRatio": "none"}
    return tag("svg", rect, class_="bar", aria_hidden="true", focusable="false", **options)
