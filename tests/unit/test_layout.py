"""The house rules, read from the source itself: imports go down, files stay small, nothing is
loaded or run that could be somebody else's code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import stoker

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "stoker"
SOURCES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES = 400
TESTS_PER_SOURCE = 0.8

FLOORS = {
    "faults": -1,
    "errors": 0,
    "commit": 0,
    "recipe": 1,
    "fleet": 1,
    "data": 2,
    "run": 2,
    "measure": 3,
    "survive": 3,
    "train": 4,
    "money": 4,
    "show": 5,
    "tickets": 5,
    "cli": 6,
}
"""An import goes to a lower floor, or stays in its room."""

DOORS = (Path("__init__.py"), Path("__main__.py"))
"""The package's own front door may lead anywhere."""


def within(path: Path) -> Path:
    return path.relative_to(PACKAGE)


def imports(source: str, file: Path) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything a file imports, inside functions too."""
    package = ["stoker", *file.parent.parts]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = [*above, *([node.module] if node.module else [])]
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


def room_of(dotted: str) -> str | None:
    """The room a name of ours lives in; None for what is not ours, and for the package itself."""
    first, _, rest = dotted.partition(".")
    name = rest.split(".")[0]
    if first != "stoker" or not name or name.startswith("__"):
        return None
    return stoker._WHERE.get(name, dotted).split(".")[1]


def wrong_imports(source: str, file: Path) -> list[str]:
    """A sentence for each import that does not go down."""
    room = file.parts[0].removesuffix(".py")
    found = []
    for line, dotted in imports(source, file):
        target = room_of(dotted)
        if target is None or target == room:
            continue
        for name in (room, target):
            if name not in FLOORS:
                found.append(f"{file}:{line}: {name} has no floor, importing {dotted}")
                break
        else:
            if FLOORS[target] >= FLOORS[room]:
                floors = f"floor {FLOORS[room]} imports floor {FLOORS[target]}"
                found.append(f"{file}:{line}: {floors}: {dotted}")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(within(path)))
def test_imports_go_down(path: Path) -> None:
    if within(path) not in DOORS:
        assert not wrong_imports(path.read_text(), within(path))


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("data/pack.py", "import os\nimport stoker.train.loop", ":2: floor 2 imports floor 4"),
        ("data/pack.py", "from stoker.run import Run", ":1: floor 2 imports floor 2"),
        ("data/pack.py", "from stoker import cli", ": stoker.cli"),
        ("data/pack.py", "from stoker import Run", ": stoker.Run"),
        ("data/pack.py", "from ..train import loop", ": stoker.train.loop"),
        ("data/pack.py", "from .. import show", ": stoker.show"),
        ("run.py", "from .measure.spans import Spans", ": stoker.measure.spans.Spans"),
        ("fleet/local.py", "def f():\n\n    from stoker.recipe import recipe", ":3: floor 1"),
        ("fleet/local.py", "if True:\n    import stoker.show.words as w", ":2: floor 1"),
        ("commit.py", "from stoker.errors import StokerError", "floor 0 imports floor 0"),
        ("attic/old.py", "from stoker.errors import StokerError", "attic has no floor"),
        ("cli/pack.py", "import stoker.attic", "attic has no floor"),
    ],
)
def test_an_import_that_goes_up_is_named(file: str, source: str, complaint: str) -> None:
    (found,) = wrong_imports(source, Path(file))
    assert found.startswith(f"{file}:")
    assert complaint in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("data/pack.py", "from stoker.errors import BadRequest\nfrom stoker.data import chance"),
        ("data/pack.py", "from . import chance\nfrom .index import Dataset"),
        ("train/loop.py", "import stoker\nfrom stoker import Run, __version__\nimport torch"),
        ("data/pack.py", "text = 'import stoker.train'"),
    ],
)
def test_other_imports_are_left_alone(file: str, source: str) -> None:
    assert not wrong_imports(source, Path(file))


def test_no_module_imports_itself_by_a_detour() -> None:
    modules = {
        ".".join(("stoker", *within(path).with_suffix("").parts)): path
        for path in SOURCES
        if path.name != "__init__.py"
    }
    graph = {
        name: {
            known
            for _, dotted in imports(path.read_text(), within(path))
            for known in (dotted, dotted.rpartition(".")[0])
            if known in modules
        }
        for name, path in modules.items()
    }
    assert sum(map(len, graph.values())) > 50
    TopologicalSorter(graph).prepare()


DANGEROUS_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
DANGEROUS_CALLS = {"eval", "exec", "os.system", "os.popen"}


def dangers(source: str) -> list[str]:
    """Line and reason of everything that might run a stranger's code."""
    found = []
    for line, dotted in imports(source, Path("x.py")):
        if dotted.split(".")[0] in DANGEROUS_MODULES or dotted == "torch.load":
            found.append(f"{line}: imports {dotted}")
        if dotted in DANGEROUS_CALLS:
            found.append(f"{line}: imports {dotted}")
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        told = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if name in DANGEROUS_CALLS:
            found.append(f"{node.lineno}: calls {name}")
        if name == "torch.load" and told.get("weights_only") != "True":
            found.append(f"{node.lineno}: torch.load without weights_only=True")
        found += [
            f"{node.lineno}: {word}={told[word]}"
            for word in ("shell", "allow_pickle")
            if told.get(word, "False") != "False"
        ]
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(within(path)))
def test_no_pickle_and_no_shell(path: Path) -> None:
    assert not dangers(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from pickle import loads",
        "import torch\ntorch.load(path)",
        "torch.load(path, weights_only=False)",
        "from torch import load",
        "subprocess.run('ls', shell=True)",
        "np.load(path, allow_pickle=True)",
        "import os\nos.system('ls')",
        "from os import system",
        "eval('1')",
        "exec('x = 1')",
    ],
)
def test_what_is_dangerous_is_found(source: str) -> None:
    assert len(dangers(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "torch.load(path, map_location='cpu', weights_only=True)",
        "from safetensors.torch import load\nload(data)",
        "subprocess.run(['ls'], shell=False)",
    ],
)
def test_what_only_sounds_dangerous_is_not(source: str) -> None:
    assert not dangers(source)


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_no_file_is_long() -> None:
    long = {str(within(path)): lines_of(path) for path in SOURCES if lines_of(path) >= MOST_LINES}
    assert not long


def test_names_say_what_a_file_is() -> None:
    empty = re.compile(r"(^|_)(utils?|helpers?|managers?|base|handlers?)(_|$)")
    parts = {part.removesuffix(".py") for path in SOURCES for part in within(path).parts}
    assert not [part for part in parts if empty.search(part)]


def test_there_is_enough_of_tests() -> None:
    tests = sum(map(lines_of, (ROOT / "tests").rglob("*.py")))
    assert tests >= TESTS_PER_SOURCE * sum(map(lines_of, SOURCES))
