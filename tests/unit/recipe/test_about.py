"""Every key of the recipe is explained: meaning, default, limits, when to change it."""

from __future__ import annotations

from collections import Counter

import pytest

from stoker.cli.show_config import run
from stoker.errors import BadRequest
from stoker.recipe.about import about, advice
from stoker.recipe.recipe import SPECS


def test_every_key_has_its_advice_once() -> None:
    counts = Counter(key for keys in advice().values() for key in keys)
    assert counts == dict.fromkeys(SPECS, 1)


@pytest.mark.parametrize("name", SPECS)
def test_every_key_is_explained(name: str) -> None:
    facts = about(name)
    assert facts.when.endswith(".")
    assert len(facts.when) < 240
    assert facts.meaning == SPECS[name].metadata["help"]
    assert all(facts.lines())


def test_a_key_is_found_by_its_flag() -> None:
    facts = about("--lr-base")
    assert (facts.name, facts.default, facts.accepts) == ("lr_base", "0.1", "a number, above 0")
    assert facts.flag == "--lr-base"
    assert facts.presets["first-look"] == "0.4"
    assert about("phases").flag == ""


@pytest.mark.parametrize("name", ["lrr", "", "\x1b[2J", "__class__"])
def test_an_unknown_key_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="unknown key"):
        about(name)


def test_show_config_explains_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--about", "crop"]) == 0
    printed = capsys.readouterr().out
    assert "takes resized, pad, centre" in printed
    assert "when to change it:" in printed
    with pytest.raises(BadRequest, match="stands alone"):
        run(["--about", "crop", "--epochs", "3"])
    with pytest.raises(BadRequest, match="stands alone"):
        run(["--about=crop", "runs/mine"])
