"""The README is run; every link in the docs leads somewhere."""

from __future__ import annotations

import re

import pytest

from integration.readme import ROOT, commands, follow, is_right_answer


def test_every_command_of_the_readme_works(capsys: pytest.CaptureFixture[str]) -> None:
    printed = "".join(follow())
    assert "finished: best top-1" in printed
    assert "bound by" in printed
    assert printed.count("finished: best top-1") == 7
    assert is_right_answer(printed)


def test_the_readme_names_two_commands_first() -> None:
    assert commands((ROOT / "README.md").read_text())[:2] == [
        "pip install .",
        "stoker train photos",
    ]


def test_links_lead_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    assert len(documents) > 5
    for document in documents:
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document}: {target}"
