"""The code of a user's own model, kept in the run: which text is run, and with whose consent.

    model.py        the text that the run began with
    model-2.py      the text that recipe-2.toml brought, and so on

Invariants: every text that trained a part of the run is kept, under the number of its recipe. Code
runs only where the user asked for it: by naming its file with --model, or with --trust-code. A run
directory or a recipe file may come from a stranger, so neither is such a request by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stoker.commit import write_bytes
from stoker.errors import BadRequest
from stoker.recipe.model_file import ModelCode, function_of, is_own, read_code
from stoker.recipe.resolve import Resolved
from stoker.run.directory import Run
from stoker.run.storage import refused
from stoker.text import shown

TRUST = "--trust-code"


def keep_code(run: Run, code: ModelCode | None) -> None:
    """Write the text of a model into the run, if it is not there: before the recipe that names it
    is recorded. Raises BadRequest where it cannot be written."""
    if code is None or kept_code(run, code.digest) is not None:
        return
    number = len(run.record["changes"]) + 2 if run.exists else 1
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        write_bytes(run.path / code_name(number), code.text.encode())
    except OSError as error:
        raise refused(run.path, error) from error


def kept_code(run: Run, digest: str, function: str = "") -> ModelCode | None:
    """The text with this hash that a run keeps; None where it keeps none."""
    for path in kept_files(run):
        with suppress(BadRequest, OSError):  # such as a file that is no text
            code = read_code(path, function)
            if code.digest == digest:
                return code
    return None


def kept_files(run: Run) -> Iterator[Path]:
    """The files of a run that may hold the text of its model; no links, which may lead anywhere."""
    newest = len(run.record["changes"]) + 2 if run.exists else 1
    paths = (run.path / code_name(number) for number in range(newest, 0, -1))
    return (path for path in paths if path.is_file() and not path.is_symlink())


def code_name(number: int) -> str:
    """The file of the text that the recipe of this number has, counting from 1."""
    return "model.py" if number == 1 else f"model-{number}.py"


def code_of_run(run: Run, named: str | None = None, *, trusted: bool = False) -> ModelCode | None:
    """The code of a run's own model, for verbs that use its weights; None where the model is not
    code of the user's own. `named` is the file that the user names (`./net.py`, `./net.py:build`),
    whose text must be the run's. Raises BadRequest where the code may not be run or is gone."""
    values = run.values
    model, digest = str(values.get("model", "")), str(values.get("model_code", ""))
    if not is_own(model):
        return None
    path = shown(str(run.path))
    code = kept_code(run, digest, function_of(model))
    if named is not None:
        own = named_code(named, model)
        if own.digest != digest:
            kept = f": compare it with {shown(str(code.path))}" if code else ""
            raise BadRequest(
                f"{shown(str(own.path))} is not the code that {path} was trained with{kept}"
            )
        return own
    if not trusted:
        where = shown(str(code.path)) if code else f"{path} ({model})"
        raise BadRequest(
            f"{path} was trained with code of its own, and using it runs {where}: read that file, "
            f"then add {TRUST}, or name your copy with --model ./{model}"
        )
    if code is None:
        raise BadRequest(f"{path} keeps no copy of {model}: name the file with --model ./{model}")
    return code


def named_code(named: str, model: str) -> ModelCode:
    """The code in a file that the user names (`./net.py`, `./net.py:build`), for the function of a
    model. Raises BadRequest where there is no such file."""
    file = Path(named.rpartition(":")[0] if is_own(named) else named)
    try:
        return read_code(file, function_of(model))
    except FileNotFoundError:
        raise BadRequest(f"--model {shown(named)}: there is no such file") from None


def code_to_train(
    resolved: Resolved, run: Run | None, *, trusted: bool = False, expected: str = ""
) -> ModelCode | None:
    """The code that a training command runs; None where its model is not code of the user's own. A
    file that is gone is replaced by the copy in the run. `expected` is the hash that a launcher has
    read for its ranks. Raises BadRequest where the code may not be run or is gone."""
    recipe, origin = resolved.recipe, resolved.origins["model"]
    if not is_own(recipe.model):
        return None
    function, name = function_of(recipe.model), shown(recipe.model_file)
    if origin != "flag" and not trusted:
        raise BadRequest(
            f"{shown(origin)} names code to run, {name}: read that file, then add {TRUST}, or "
            f"--model {name}:{function}"
        )
    values = run.values if run and run.exists else {}
    kept = values.get("model_code", "") if values.get("model") == recipe.model else ""
    digest = expected or str(kept)
    try:
        code = read_code(Path(recipe.model_file), function)
        if expected in ("", code.digest):
            return code
    except FileNotFoundError:
        copy = kept_code(run, digest, function) if run and digest else None
        if copy is None:
            raise BadRequest(f"no model at {name}: there is no such file") from None
        if not trusted:
            raise BadRequest(
                f"no model at {name}: there is no such file; {shown(str(copy.path))} is the copy "
                f"that the run keeps: add {TRUST} to use it"
            ) from None
        return copy
    # The file has changed since the launcher read it.
    if run and (copy := kept_code(run, expected, function)):
        return copy
    raise BadRequest(f"{name} has changed while the ranks were starting: give the command again")
