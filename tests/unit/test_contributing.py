"""The table "Where is ...?" in CONTRIBUTING.md is true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
TABLE = TEXT.partition("## Where is ...?")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (.+?) \| `(\S+?)` \| `(\S+?)` \|$", TABLE, re.MULTILINE)


def names_in(file: Path) -> set[str]:
    """What a module defines at its top level, and the methods of its classes."""
    names = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inside = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            names |= {f"{node.name}.{each.name}" for each in inside}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_there_are_forty_behaviours() -> None:
    assert len({behaviour for behaviour, _, _ in ROWS}) >= 40


@pytest.mark.parametrize(("behaviour", "module", "symbol"), ROWS)
def test_a_symbol_lives_where_the_table_says(behaviour: str, module: str, symbol: str) -> None:
    file = ROOT / "src" / "stoker" / module
    assert file.is_file(), f"{behaviour}: no module {module}"
    assert symbol in names_in(file), f"{behaviour}: {module} has no {symbol}"


def test_every_folder_is_in_the_table_of_floors() -> None:
    folders = {path.name for path in (ROOT / "src" / "stoker").iterdir() if path.is_dir()}
    table = TEXT.partition("| floor | folder |")[2].partition("\n\n")[0]
    assert {name for name in folders if not name.startswith("__")} <= set(
        re.findall(r"`(\w+)`", table)
    )
