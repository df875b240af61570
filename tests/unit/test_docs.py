"""Links and paths in the documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
PATH = re.compile(r"`(?:pytest |python )?((?:[a-z_]+/)+[A-Za-z_0-9-]+\.(?:py|toml|md|txt))")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_exist(path: Path) -> None:
    text = path.read_text()
    links = [path.parent / link for link in LINK.findall(text)]
    assert not [str(link) for link in links if not link.exists()]
    bases = (ROOT, ROOT / "src" / "stoker", path.parent)
    paths = set(PATH.findall(text))
    assert not [name for name in paths if not any((base / name).exists() for base in bases)]
