"""The documentation builds as a site without warnings, from nothing, and every link in it leads
somewhere. It needs nothing from elsewhere: it opens from a disk."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("zensical", reason="the site needs Zensical: pip install '.[docs]'")

ROOT = Path(__file__).parents[2]
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "srcset", "use": "href"}
"""Tags that make a browser load something, and where they name it."""


class Tags(HTMLParser):
    """The links of a page, what it loads, and the places in it that a link can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if values.get(LOADS.get(tag, "")):
            self.loads.append(values[LOADS[tag]])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(values["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site of a copy of the documents."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    zensical = Path(sys.executable).parent / "zensical"
    command = [str(zensical), "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    assert "No issues found" in printed, printed
    assert not re.search(r"warning|error", printed, re.IGNORECASE), printed
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Tags]:
    found = {path: Tags(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(found) >= len([*(ROOT / "docs").rglob("*.md")])
    return found


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/.-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    docs = ROOT / "docs"
    assert named == {str(path.relative_to(docs)) for path in docs.rglob("*.md")}


def test_every_decision_is_in_their_list() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = set(re.findall(r"\]\((\d[\w.-]+)\)", (folder / "index.md").read_text()))
    assert listed == {path.name for path in folder.glob("0*.md")}


def test_every_link_leads_somewhere(pages: dict[Path, Tags]) -> None:
    wrong = []
    for path, tags in pages.items():
        for link in tags.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            place = unquote(parts.fragment)
            if not target.exists() or (place and place not in pages[target].places):
                wrong.append(f"{path.name}: {link}")
    assert not wrong


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Tags]) -> None:
    loads = {load for tags in pages.values() for load in tags.loads}
    assert not [load for load in loads if urlsplit(load).netloc]
    assert any(load.endswith(".css") for load in loads)
