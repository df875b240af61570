"""A text is checked before it runs, and runs only if it is trusted."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from own_models import NET, write
from stoker.errors import BadRequest
from stoker.recipe.model_file import ModelCode, read_code
from stoker.recipe.recipe import Recipe
from stoker.train.model import own_code
from stoker.train.model.own_code import check_code, load, own_code_of, trust, trusted_code

pytestmark = pytest.mark.exact


def code_of(folder: Path, text: str, function: str = "build") -> ModelCode:
    return read_code(write(folder, text), function)


class TestTrust:
    def test_only_what_was_trusted_is_run(self, tmp_path: Path) -> None:
        code = code_of(tmp_path, NET + "# trusted\n")
        recipe = Recipe(model="net.py:build", model_code=code.digest)
        with pytest.raises(BadRequest, match="--trust-code"):
            trusted_code(recipe)
        trust(code)
        assert trusted_code(recipe) == code == own_code_of(recipe)
        with pytest.raises(BadRequest, match="--trust-code"):
            trusted_code(replace(recipe, model_code=""))

    def test_the_recipe_says_which_function(self, tmp_path: Path) -> None:
        code = code_of(tmp_path, NET)
        trust(code)
        assert trusted_code(Recipe(model="net.py:Net", model_code=code.digest)).function == "Net"

    def test_other_models_have_no_code(self) -> None:
        trust(None)
        assert own_code_of(Recipe()) is None


class TestCheck:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("def build(n)\n    return 1\n", r"net\.py:1: not valid Python"),
            ("x = 1\ny = (\n", r"net\.py:2: not valid Python"),
            ("x = " + "-" * 100_000 + "1\n", "not valid Python"),
            ("import blocks\ndef build(n): pass\n", r"net\.py:1: it imports blocks"),
            ("def build(n):\n    from blocks.deep import Block\n", r"net\.py:2: it imports blocks"),
            ("from . import blocks\ndef build(n): pass\n", r"net\.py:1: it imports \.blocks"),
            ("from .blocks import B\ndef build(n): pass\n", r"it imports \.blocks"),
            ("import layers.conv\ndef build(n): pass\n", r"it imports layers"),
            ("def bild(n): pass\n", "no function called 'build': did you mean 'bild'"),
            ("x = 1\n", "no function called 'build'$"),
        ],
    )
    def test_mistakes_are_named_by_line(self, tmp_path: Path, text: str, reason: str) -> None:
        write(tmp_path, "class Block: pass\n", "blocks.py")
        (tmp_path / "layers").mkdir()
        with pytest.raises(BadRequest, match=reason):
            check_code(code_of(tmp_path, text))

    @pytest.mark.parametrize(
        "text",
        [
            "import json\ndef build(n): pass\n",
            "import not_installed_here\ndef build(n): pass\n",
            "from somewhere import *\n",
            "from somewhere import make as build\n",
            "build = lambda n: None\n",
            "if True:\n    class build: pass\n",
        ],
    )
    def test_what_may_be_right_is_left_to_python(self, tmp_path: Path, text: str) -> None:
        write(tmp_path, "x = 1\n", "json.py")  # the installed one is imported
        check_code(code_of(tmp_path, text))

    def test_a_sibling_counts_though_the_path_leads_to_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(tmp_path, "x = 1\n", "own_blocks.py")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(BadRequest, match="own_blocks"):
            check_code(code_of(tmp_path, "import own_blocks\ndef build(n): pass\n"))


class TestLoad:
    def test_the_text_runs_whatever_its_file_holds(self, tmp_path: Path) -> None:
        code = code_of(tmp_path, "VALUE = 1\n")
        write(tmp_path, "VALUE = 2\n")
        assert load(code).VALUE == 1

    def test_each_load_runs_it_again(self, tmp_path: Path) -> None:
        code = code_of(tmp_path, "LIST = []\n")
        load(code).LIST.append(1)
        assert load(code).LIST == []

    def test_nothing_else_becomes_importable(self, tmp_path: Path) -> None:
        before, path = set(sys.modules), list(sys.path)
        load(code_of(tmp_path, NET))
        assert sys.path == path
        added = {name for name in set(sys.modules) - before if not name.startswith("torch")}
        assert all(name.startswith("stoker_model_") for name in added)
        assert not list(tmp_path.rglob("*.pyc"))

    def test_dataclasses_and_annotations_work(self, tmp_path: Path) -> None:
        text = (
            "from __future__ import annotations\nfrom dataclasses import dataclass\n"
            "@dataclass\nclass Sizes:\n    width: int = 4\n"
        )
        assert load(code_of(tmp_path, text)).Sizes().width == 4

    def test_it_knows_its_file(self, tmp_path: Path) -> None:
        assert load(code_of(tmp_path, "x = __file__\n")).x == str(tmp_path / "net.py")


def test_the_module_needs_no_torch() -> None:
    source = Path(own_code.__file__).read_text()
    assert "import torch" not in source
    assert "from torch" not in source
