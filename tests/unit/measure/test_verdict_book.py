"""docs/verdict.md has an entry for every kind of verdict that the code can give."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stoker.measure.verdict import RULES
from stoker.measure.verdict_text import EVIDENCE, NAMES

BOOK = Path(__file__).parents[3] / "docs" / "verdict.md"
ENTRY = re.compile(r"^### [^\n]*`([a-z_.]+)`\n(.*?)(?=^##)", re.MULTILINE | re.DOTALL)
FIELDS = ("**It says**", "**Measured:**", "**First:**", "**Unsure:**")


def entries() -> dict[str, str]:
    """The text of each entry by its kind, in one line."""
    found = ENTRY.findall(BOOK.read_text(encoding="utf-8"))
    assert len(found) == len(dict(found)), "a kind has two entries"
    return {kind: " ".join(text.split()) for kind, text in found}


def test_every_kind_has_an_entry_and_no_other_has() -> None:
    assert sorted(entries()) == sorted(NAMES.keys() | EVIDENCE.keys())


@pytest.mark.parametrize("kind", NAMES)
def test_an_entry_quotes_what_is_printed_and_answers_four_questions(kind: str) -> None:
    text = entries().get(kind, "")
    assert not [field for field in FIELDS if text.count(field) != 1]
    assert f'"{NAMES[kind].partition("{")[0]}' in text


def test_the_thresholds_are_those_of_the_rules() -> None:
    """Each row of the table that gives a percentage."""
    rows = re.findall(r"^\| (`[^|]+) \| (\d+) % \|", BOOK.read_text(encoding="utf-8"), re.MULTILINE)
    given = {kind: int(least) for kinds, least in rows for kind in re.findall(r"`([^`]+)`", kinds)}
    assert given.keys() <= NAMES.keys()
    assert set(given.values()) == {round(100 * least) for least, _ in RULES}
