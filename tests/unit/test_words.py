"""Plain words: the field's terms, no archaisms, nouns for variables."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src" / "stoker").rglob("*.py"))
DOCS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
TEXTS = [*SOURCES, *sorted((ROOT / "src" / "stoker").rglob("*.toml")), *DOCS]

LINKS = re.compile(
    r"network (interface|card|port|namespace|disk)s?|own network|machine's network|"
    r"or its network|/tests?_doctor_network|test_doctor_network"
)
"""Phrases in which the word means a link between machines."""
LINK_PLACES = {
    "src/stoker/host/counters.py": r"network",
    "src/stoker/host/interfaces.py": r"network",
    "src/stoker/history/usage.py": r'"network\\.',
    "src/stoker/doctor/visit.py": r'figures\["network"\]',
    "src/stoker/doctor/ranks.py": r'"network\.json"',
    "src/stoker/measure/verdict.py": r'"network"',
    "src/stoker/measure/verdict_text.py": r'"network":',
    "docs/verdict.md": r"`network`|: network$",
    "docs/results/verdict.md": r"\| network \|",
    "docs/decisions/013-folders-show-the-architecture.md": r'"network"',
    "src/stoker/data/sources/addresses.py": r"ip_network",
}
"""Files in which it names the traffic of a machine, a limit or a figure, and how."""

ARCHAIC = re.compile(
    r"\b(whoever|anew|foretold|foretell|how-manieth|betrays?|whereof|henceforth|midst|wishe?s?|"
    r"somebody|nobody|meanwhile)\b",
    re.IGNORECASE,
)
PARTICIPLES = {"found", "seen", "told", "said"}


def lines(path: Path) -> Iterator[tuple[str, str]]:
    name = path.relative_to(ROOT).as_posix()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        yield f"{name}:{number}: {line.strip()}", line


def id_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", TEXTS, ids=id_of)
def test_a_network_is_a_link_between_machines(path: Path) -> None:
    """A neural network is a model."""
    place = re.compile(LINK_PLACES.get(id_of(path), r"(?!)"))
    assert not [
        where
        for where, line in lines(path)
        if "network" in place.sub("", LINKS.sub("", line.lower()))
    ]


def test_every_allowed_place_is_needed() -> None:
    for name, pattern in LINK_PLACES.items():
        assert re.search(pattern, (ROOT / name).read_text(), re.MULTILINE), name


@pytest.mark.parametrize("path", TEXTS, ids=id_of)
def test_no_archaisms(path: Path) -> None:
    assert not [where for where, line in lines(path) if ARCHAIC.search(line)]


def stored_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


@pytest.mark.parametrize("path", SOURCES, ids=id_of)
def test_variables_are_nouns(path: Path) -> None:
    names = stored_names(ast.parse(path.read_text()))
    assert not [f"{line}: {name}" for line, name in names if name in PARTICIPLES]
