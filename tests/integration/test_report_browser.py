"""The report in a real browser: hostile text runs nothing, and our own script works."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from made_runs import RunMaker
from report_pages import MARKUP, hostile_run
from stoker.run.directory import Run
from stoker.show.report.page import write_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")


def dom(page: Path, profile: Path, *flags: str) -> str:
    """The page as it is after three seconds of its own time."""
    words = [
        str(BROWSER),
        *("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"),
        *("--virtual-time-budget=3000", "--dump-dom", *flags, page.as_uri()),
    ]
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout


def title(page: str) -> str:
    match = re.search(r"<title>(.*?)</title>", page, re.DOTALL)
    return match[1] if match else ""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    write_report(hostile_run(tmp_path / "run"), tmp_path / "page.html")
    return tmp_path / "page.html"


def test_hostile_text_runs_nothing(page: Path, tmp_path: Path) -> None:
    shown = dom(page, tmp_path / "profile")
    assert title(shown).startswith("Run of &lt;/script&gt;")
    assert shown.count("<script") == 1 and "<img" not in shown
    assert 'id="theme">' in shown, "our own script has shown its button"
    assert re.search(r'<th scope="col"[^>]*><button type="button">class</button>', shown)


def test_the_policy_holds_where_escaping_would_not(page: Path, tmp_path: Path) -> None:
    """Elements that run a script are put into the page by hand: none of them does."""
    text = page.read_text()
    changed = text.replace("<main ", f"{MARKUP.replace('</title>', '')}<main ", 1)
    assert changed != text
    broken = tmp_path / "broken.html"
    broken.write_text(changed)
    shown = dom(broken, tmp_path / "profile")
    assert "<script>document.title='ran'</script>" in shown
    assert title(shown).startswith("Run of &lt;/script&gt;")


def test_it_works_without_scripts_too(tmp_path: Path) -> None:
    run: Run = RunMaker(tmp_path / "run", steps=100).attempt(0, 100).run
    page = tmp_path / "page.html"
    write_report(run, page)
    still = tmp_path / "still.html"
    still.write_text(re.sub(r"<script>.*?</script>", "", page.read_text(), flags=re.DOTALL))
    shown = dom(still, tmp_path / "profile")
    assert shown.count("<svg") == page.read_text().count("<svg")
    assert 'id="theme" hidden=""' in shown


def test_values_are_read_back_and_tables_are_sorted(tmp_path: Path) -> None:
    """The page with a second script, which does what a reader does."""
    run: Run = RunMaker(tmp_path / "run", steps=400).attempt(0, 400).run
    page = tmp_path / "page.html"
    write_report(run, page)
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    acted = tmp_path / "acted.html"
    acted.write_text(text.replace("</body>", f"<script>{READER}</script></body>"))
    shown = dom(acted, tmp_path / "profile")
    (first, *_) = re.findall(r'<output class="readout"[^>]*>([^<]*)</output>', shown)
    match = re.fullmatch(r"Epochs ([\d.]+): training top-1 ([\d.]+)%, evaluation top-1 .*", first)
    assert match, first
    # A made run trains to 10% and then 8% more with each of its ten epochs.
    assert float(match[2]) == pytest.approx(10 + 8 * float(match[1]), abs=2)
    assert "class a is right: " in shown
    assert re.search(r'aria-sort="descending"[^>]*><button[^>]*>top-1', shown)
    assert 'data-theme="dark"' in shown
    assert shown.count('<tr hidden="">') == 7, "the filter leaves one of eight classes"


READER = """
const plots = document.querySelector(".plots");
for (let count = 0; count < 5; count++)
  plots.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
const heat = document.querySelector(".heat");
const cells = heat.querySelector(".shades").getBoundingClientRect();
heat.dispatchEvent(new PointerEvent("pointermove",
  {clientX: cells.left + 4, clientY: cells.top + 4, bubbles: true}));
const heads = Array.from(document.querySelectorAll("table.sortable thead button"));
const top1 = heads.find((button) => button.textContent === "top-1");
top1.click();
top1.click();
const field = document.querySelector(".filter");
field.value = "class c";
field.dispatchEvent(new Event("input"));
document.getElementById("theme").click();
"""
