"""The style: both dark palettes are the same, and every colour can be read."""

from __future__ import annotations

import re

import pytest

from stoker.show.report.page import asset
from stoker.show.report.png import COLOURS

CSS = asset("page.css")
BLOCKS = [dict(re.findall(r"(--[\w-]+):(#[0-9a-f]{6})", block)) for block in re.findall(
    r":root[^{]*\{([^}]*--paper[^}]*)\}", CSS)]  # fmt: skip
TEXTS, LINES = ("--ink", "--soft", "--accent", "--bad"), tuple(f"--s{n}" for n in range(12))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_there_is_a_light_palette_and_one_dark_palette_in_two_places() -> None:
    light, dark, chosen = BLOCKS
    assert dark == chosen
    assert light.keys() == dark.keys()
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("palette", BLOCKS[:2], ids=["light", "dark"])
def test_colours_meet_the_contrast_of_wcag_aa(palette: dict[str, str]) -> None:
    for paper in ("--paper", "--card"):
        for text in TEXTS:
            assert contrast(palette[text], palette[paper]) >= 4.5, (text, paper)
    for line in (*LINES, "--edge"):
        assert contrast(palette[line], palette["--paper"]) >= 3, line
    assert contrast(palette["--ink"], palette["--heat"]) >= 4.5


def test_pictures_have_the_colours_of_the_page() -> None:
    assert [BLOCKS[0][name] for name in LINES] == list(COLOURS)


def test_lines_differ_in_their_dashes_too() -> None:
    dashes = re.findall(r"\.line\.s\d+\{stroke-dasharray:([^}]+)\}", CSS)
    assert len({*dashes, "none"}) == 12


def test_the_script_writes_text_alone() -> None:
    script = asset("page.js")
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "eval(", "Function(", "http"):
        assert word not in script
    assert "</script" not in script.lower() and "</style" not in CSS.lower()
    assert "url(" not in CSS and "@import" not in CSS


def test_paper_and_small_screens_have_rules_of_their_own() -> None:
    assert "@media print" in CSS and "@media(max-width" in CSS
