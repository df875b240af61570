"""Prices age and commands do not: the pages about cost, as a reader types them on a later day.

One of these runs here, other ones with the next commits, all of them with `--whole`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from clock import days_ahead
from pages import ROOT, read_page, run_page

PAGES = ("docs/planning.md", "docs/guides/cost.md", "docs/guides/spot.md")


@pytest.mark.timeout(1200)
@pytest.mark.rotates(12)
@pytest.mark.parametrize("days", [0, 30, 100, 400])
@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_a_page_works_later(name: str, days: int, tmp_path: Path) -> None:
    page = read_page(ROOT / name)
    folder = tmp_path / "page"
    folder.mkdir()
    printed = run_page(page, folder, days_ahead(days))
    assert "stoker plan" in printed
    assert days < 30 or "OLD PRICES: " in printed
