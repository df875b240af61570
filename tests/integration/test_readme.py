"""The README is run, as a newcomer would type it."""

from __future__ import annotations

from integration.readme import follow, is_right_answer
from pages import ROOT, commands_in


def test_every_command_of_the_readme_works() -> None:
    printed = "".join(follow())
    assert printed.count("finished: best top-1") == 1
    assert "slowed by" in printed
    assert is_right_answer(printed)


def test_the_readme_names_two_commands_first() -> None:
    assert commands_in((ROOT / "README.md").read_text())[:2] == [
        "pip install .",
        "stoker train photos",
    ]
