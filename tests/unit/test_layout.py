"""The house rules, read from the source itself: imports go down, files stay small, nothing is
loaded or run that could be somebody else's code."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
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
    "faults": 0,
    "errors": 0,
    "safe_path": 0,
    "text": 0,
    "chance": 0,
    "intervals": 0,
    "commit": 0.5,
    "host": 1,
    "locks": 1.1,
    "recipe": 1.1,
    "stores": 1,
    "fleet": 2,
    "fleet.slurm": 2.1,
    "fleet.grid": 2.2,
    "fleet.sky": 2.1,
    "fleet.spark": 2.2,
    "run": 2,
    "data.index": 2.9,
    "data": 3,
    "data.images": 3.1,
    "data.sources": 3.2,
    "data.sources.shards": 3.2,
    "data.loading": 3.2,
    "data.packing": 3.3,
    "data.packing.target": 3.3,
    "data.packing.tables": 3.3,
    "data.copies": 3.4,
    "survive": 4,
    "survive.remote": 4.1,
    "measure": 4,
    "measure.trials": 4.1,
    "measure.logs": 4.1,
    "price": 5,
    "price.ledger": 5.1,
    "history": 5.5,
    "train.model": 6,
    "train": 6.1,
    "train.trials": 6.2,
    "train.records": 6.3,
    "train.attempt": 6.4,
    "use.exported": 6.9,
    "use": 7,
    "use.export": 7.1,
    "study": 7,
    "study.tickets": 7.1,
    "doctor": 7,
    "doctor.selftest": 7.1,
    "plan.gpu": 7.5,
    "plan.bench": 8,
    "plan.claims": 8,
    "plan": 8.1,
    "plan.measured": 8.2,
    "show": 9,
    "show.machine": 9.1,
    "show.bench": 9.1,
    "show.study": 9.1,
    "show.use": 9.1,
    "show.plan": 9.1,
    "show.watch": 9.1,
    "show.report": 9.1,
    "show.report_studies": 9.2,
    "track": 9,
    "cli": 10,
}
"""An import goes to a lower floor, or stays in its folder."""
STRANGERS = {"fleet": ("recipe",)}
"""What a folder must not import though it is on a lower floor: fleet runs commands, whatever they
are."""
MOST_MODULES = 12
"""In a folder; `cli` has one module a verb."""
MOST_FUNCTION_LINES = 50
MOST_PARAMETERS = 8
PARAMETERS_EXCEPT = {"recipe/recipe.py": {"key"}}
"""The table of the recipe's keys is written with one function, a parameter for each property."""

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


def room_of(parts: Sequence[str]) -> str:
    """The folder of FLOORS that a module below `stoker` is in; its first name where there is
    none."""
    for size in range(min(len(parts), 2), 0, -1):
        if (name := ".".join(parts[:size])) in FLOORS:
            return name
    return parts[0]


def target_of(dotted: str) -> str | None:
    """The folder that an import leads to; None for other packages and for `stoker` itself."""
    first, _, rest = dotted.partition(".")
    parts = rest.split(".")
    if first != "stoker" or not rest or rest.startswith("__"):
        return None
    return room_of(stoker._HOMES.get(parts[0], dotted).split(".")[1:])


def own_room(file: Path) -> str:
    return room_of(file.with_suffix("").parts)


def wrong_imports(source: str, file: Path) -> list[str]:
    """A sentence for each import that does not go down."""
    room = own_room(file)
    wrong = []
    for line, dotted in imports(source, file):
        target = target_of(dotted)
        if target is None or target == room:
            continue
        unknown = next((name for name in (room, target) if name not in FLOORS), None)
        if unknown is not None:
            wrong.append(f"{file}:{line}: {unknown} has no floor, importing {dotted}")
        elif FLOORS[target] >= FLOORS[room] or target in STRANGERS.get(room, ()):
            floors = f"{room} (floor {FLOORS[room]}) imports {target} (floor {FLOORS[target]})"
            wrong.append(f"{file}:{line}: {floors}: {dotted}")
    return wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(within(path)))
def test_imports_go_down(path: Path) -> None:
    if within(path) not in DOORS:
        assert not wrong_imports(path.read_text(), within(path))


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        (
            "data/verify.py",
            "import os\nimport stoker.train.step",
            ":2: data (floor 3) imports train",
        ),
        ("data/verify.py", "from stoker.survive.spot import Notice", "imports survive (floor 4)"),
        (
            "data/images/jpeg.py",
            "from stoker.data.sources import layout",
            "imports data.sources",
        ),
        ("data/loading/order.py", "from stoker.data.packing import pack", "imports data.packing"),
        ("data/sources/tables.py", "from stoker.data.loading import order", "imports data.loading"),
        ("data/dataset.py", "from stoker.data.images import jpeg", "imports data.images"),
        ("train/model/build.py", "from stoker.train.step import Step", "imports train (floor 6.1)"),
        ("train/step.py", "from stoker.train.trials import memory", "imports train.trials"),
        ("data/verify.py", "from stoker import cli", ": stoker.cli"),
        ("survive/spot.py", "from stoker import Meter", ": stoker.Meter"),
        ("data/verify.py", "from ..train import step", ": stoker.train.step"),
        ("data/verify.py", "from .. import show", ": stoker.show"),
        ("run/events.py", "from ..measure.spans import Spans", ": stoker.measure.spans.Spans"),
        ("run/events.py", "from stoker.fleet import workers", "run (floor 2) imports fleet"),
        ("host/proc.py", "def f():\n\n    from stoker.recipe import recipe", ":3: host (floor 1)"),
        (
            "fleet/workers.py",
            "from stoker.recipe import recipe",
            ":1: fleet (floor 2) imports recipe",
        ),
        (
            "fleet/workers.py",
            "if True:\n    import stoker.show.machine.link as l",
            ":2: fleet (floor 2)",
        ),
        ("commit.py", "from stoker.host.limits import usable_cores", "imports host (floor 1)"),
        ("text.py", "from stoker.errors import StokerError", "text (floor 0) imports errors"),
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
        ("data/packing/pack.py", "from stoker.errors import BadRequest\nfrom stoker import chance"),
        ("data/packing/pack.py", "from . import shard\nfrom ..dataset import Dataset"),
        (
            "train/attempt/loop.py",
            "import stoker\nfrom stoker import Run, __version__\nimport torch",
        ),
        ("data/packing/pack.py", "text = 'import stoker.train'"),
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
WRITES_ONLY = "pickle.Pickler"
DANGEROUS_CALLS = {"eval", "exec", "os.system", "os.popen"}


def dangers(source: str) -> list[str]:
    """Line and reason of everything that might run a stranger's code."""
    found = []
    for line, dotted in imports(source, Path("x.py")):
        dangerous = dotted.split(".")[0] in DANGEROUS_MODULES and dotted != WRITES_ONLY
        if dangerous or dotted == "torch.load":
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
        "from pickle import Unpickler",
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
        "from pickle import Pickler",
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


def modules_in(folder: Path) -> int:
    return len([path for path in folder.glob("*.py") if not path.name.startswith("__")])


def test_no_folder_is_crowded() -> None:
    folders = {path.parent for path in SOURCES} - {PACKAGE / "cli"}
    counts = {str(within(folder)): modules_in(folder) for folder in folders}
    assert not {name: count for name, count in counts.items() if count > MOST_MODULES}


def test_every_folder_has_a_floor() -> None:
    folders = {path.parent for path in SOURCES} - {PACKAGE}
    assert not [f for f in folders if ".".join(within(f).parts) not in FLOORS]


def test_no_two_classes_have_one_name() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(within(path)))
    assert not {name: where for name, where in places.items() if len(where) > 1}


Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[str, Function]]:
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield str(within(path)), node


def test_no_function_is_long() -> None:
    lines = {
        f"{file}: {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for file, node in functions()
    }
    assert not {name: count for name, count in lines.items() if count > MOST_FUNCTION_LINES}


def test_no_function_has_many_parameters() -> None:
    many = Counter[str]()
    for file, node in functions():
        named = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        count = len([each for each in named if each.arg not in ("self", "cls")])
        if count > MOST_PARAMETERS and node.name not in PARAMETERS_EXCEPT.get(file, ()):
            many[f"{file}: {node.name}"] = count
    assert not many


PUBLIC = {
    *("Dataset", "BatchLoader", "Loader", "Meter", "Order", "Recipe", "Run", "Spans"),
    *("pack", "resolve"),
}
"""What people import from `stoker`: a name that is here stays."""


def test_every_public_name_survives() -> None:
    assert {*stoker.__all__} >= {*PUBLIC, "__version__"}
    assert {*stoker.__all__} - {"__version__"} == {*stoker._HOMES}
    for name in stoker._HOMES:
        assert getattr(stoker, name).__name__ == name


def test_a_users_type_checker_sees_the_types() -> None:
    assert (PACKAGE / "py.typed").is_file()
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    typed = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == stoker._HOMES
