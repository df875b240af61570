"""Every command of every page of the documentation is run, as a reader would type it.

One page in six runs here, other ones with the next commit, all of them with `--whole`. One page by
itself: `python tests/pages.py docs/guides/photos.md FOLDER`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import Page, all_pages, run_page

PAGES = [page for page in all_pages() if page.is_run and page.path.name != "README.md"]


@pytest.mark.timeout(1200)
@pytest.mark.rotates(6)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_works(page: Page, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    run_page(page, folder)
