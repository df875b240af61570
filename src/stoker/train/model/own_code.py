"""A model of the user's own: its text, checked and loaded without torch.

Invariants: only text that was passed to `trust` is ever run, and it is found by its hash, so every
rank and every attempt runs the text that the recipe names. The file stands alone: it imports what
is installed, and nothing from beside it, because the run keeps this one file. Each load runs the
text again, so that what it leaves in its module does not pass from one model to the next.
"""

from __future__ import annotations

import ast
import difflib
import linecache
import sys
from collections.abc import Iterator
from importlib.abc import ExecutionLoader
from importlib.util import find_spec, module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from stoker.errors import BadRequest
from stoker.recipe.model_file import ModelCode, function_of, is_own
from stoker.recipe.recipe import Recipe
from stoker.text import one_line, shown

_trusted: dict[str, ModelCode] = {}


def trust(code: ModelCode | None) -> None:
    """Let this process run a text that the user asked for. Raises BadRequest where it is no Python,
    does not define its function, or imports a file from beside it."""
    if code is not None:
        check_code(code)
        _trusted[code.digest] = code


def trusted_code(recipe: Recipe) -> ModelCode:
    """The text of the recipe's model. Raises BadRequest where it was not passed to `trust`."""
    if recipe.model_code not in _trusted:
        raise BadRequest(
            f"{recipe.model} is code of its own, and this command was not asked to run it: name "
            "the file with --model, or add --trust-code"
        )
    code = _trusted[recipe.model_code]
    return ModelCode(code.path, function_of(recipe.model), code.text)


def own_code_of(recipe: Recipe) -> ModelCode | None:
    """The text of a model of the user's own, as `trusted_code`; None for other models."""
    return trusted_code(recipe) if is_own(recipe.model) else None


def check_code(code: ModelCode) -> None:
    """Raise BadRequest for what can be known as a mistake without running the text."""
    name = shown(code.path.name)
    try:
        tree = ast.parse(code.text)
    except SyntaxError as error:
        raise BadRequest(f"{name}:{error.lineno or 1}: not valid Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise BadRequest(f"{name} is not valid Python: {one_line(str(error))}") from error
    for line, module in imported(tree):
        if is_beside(code.path, module):
            raise BadRequest(
                f"{name}:{line}: it imports {module}, which is beside it: put it into one file, or "
                "install it as a package"
            )
    names = set(defined(tree))
    if code.function not in names and "*" not in names:
        near = difflib.get_close_matches(code.function, names, n=1)
        hint = f": did you mean '{near[0]}'?" if near else ""
        raise BadRequest(f"{name} has no function called '{code.function}'{hint}")


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and first name of everything that a text imports; relative ones begin with a dot."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            first = (node.module or node.names[0].name).partition(".")[0]
            yield node.lineno, f".{first}" if node.level else first


def is_beside(path: Path, module: str) -> bool:
    """Whether an import leads to a file beside the model's. A package that is installed comes
    first, as it does for Python's own command."""
    if module.startswith("."):
        return True
    places = (path.parent / f"{module}.py", path.parent / module)
    if not any(place.exists() for place in places):
        return False
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return True
    folders = [spec.origin or "", *(spec.submodule_search_locations or ())]
    return any(Path(folder).resolve() in [p.resolve() for p in places] for folder in folders)


def defined(tree: ast.Module) -> Iterator[str]:
    """The names that a module defines; `*` where an import may define any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in node.names)


class _TextLoader(ExecutionLoader):
    """Loads a module from a text, whatever its file holds by now."""

    def __init__(self, code: ModelCode) -> None:
        self._code = code

    def get_filename(self, fullname: str) -> str:
        return str(self._code.path)

    def get_source(self, fullname: str) -> str:
        return self._code.text


def load(code: ModelCode) -> ModuleType:
    """Run the text as a module of a private name. Raises what the text raises."""
    name, file = f"stoker_model_{code.digest[:16]}", str(code.path)
    loader = _TextLoader(code)
    spec = spec_from_loader(name, loader, origin=file)
    assert spec is not None
    module = module_from_spec(spec)
    module.__file__ = file
    # Tracebacks and torch.compile read the lines that are run, not those of a file that changed.
    linecache.cache[file] = (len(code.text), None, code.text.splitlines(keepends=True), file)
    sys.modules[name] = module  # dataclasses and torch.compile look their module up there
    loader.exec_module(module)
    return module
