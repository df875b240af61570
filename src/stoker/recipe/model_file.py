"""A model of the user's own: `--model ./net.py:build`, a file and a function in it.

Invariants: in a recipe `model` is the name alone (net.py:build), `model_file` the absolute path of
the file on this machine, and `model_code` the hash of its text. So the same model at another path
is the same recipe, and another text is another recipe. Nothing is run here.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker.errors import BadRequest
from stoker.text import shown, size

LARGEST_TEXT = 1 << 20
"""Bytes of a model's file: far more than anybody types."""
_OWN = re.compile(r"(?P<file>.*?[^/]\.py):(?P<function>[^\W\d]\w*)", re.DOTALL)
_LIKE_A_FILE = re.compile(r"[.~]{0,2}/.*|.*\.py(:.*)?", re.DOTALL)
_LIKE_A_FUNCTION = re.compile(r"(?P<module>[A-Za-z_]\w*):(?P<function>\w+)")


@dataclass(frozen=True)
class ModelCode:
    """The text of a model's file, and the function that builds the model."""

    path: Path
    """Where the text was read: named in messages, and nothing else."""
    function: str
    text: str

    @property
    def digest(self) -> str:
        """The hash of the text: the recipe's `model_code`."""
        return digest_of(self.text)


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def is_own(model: str) -> bool:
    """Whether a recipe's model is code of the user's own."""
    return _OWN.fullmatch(model) is not None


def function_of(model: str) -> str:
    """The function of a model of the user's own."""
    return model.rpartition(":")[2]


def label_of(model: str) -> str:
    """The model's name as a part of a folder's name: without `.py` and the function."""
    return model.rpartition(":")[0].removesuffix(".py") if is_own(model) else model


def own_model(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a model of the user's own has, from the values of a recipe: the name and the
    absolute path, which is relative to the working directory. Empty for other models. Raises
    BadRequest for a file without a function, and for a function without a file."""
    model = values.get("model", "")
    match = _OWN.fullmatch(model)
    if match is None:
        refuse_half_names(model)
        return {}
    file, function = match["file"], match["function"]
    name, path = Path(file).name, values.get("model_file", "")
    if file != name or Path(path).name != name:
        path = absolute(file)
    return {"model": f"{name}:{function}", "model_file": path}


def absolute(file: str) -> str:
    try:
        # Not resolve(): a link to the newest text stays a link.
        return os.path.normpath(Path(file).expanduser().absolute())
    except (OSError, RuntimeError) as error:  # the working directory was removed; no such user
        raise BadRequest(f"--model {shown(file)}: there is no such place ({error})") from error


def refuse_half_names(model: str) -> None:
    """Raise BadRequest for a model that looks like a file and a function, and is not."""
    if function := _LIKE_A_FUNCTION.fullmatch(model):
        meant = f"{function['module']}.py:{function['function']}"
        raise BadRequest(f"--model {model}: a model of your own is named as ./{meant}")
    if _LIKE_A_FILE.fullmatch(model):
        file = shown(model.partition(":")[0])
        raise BadRequest(
            f"--model {shown(model)}: name the file and the function that builds the model, such "
            f"as {file if file.endswith('.py') else './net.py'}:build"
        )


def read_code(path: Path, function: str) -> ModelCode:
    """The text of a model's file. Raises FileNotFoundError where there is none, BadRequest where it
    cannot be read or is no text."""
    name = shown(str(path))
    try:
        if not path.is_file():
            if path.exists():
                raise BadRequest(f"{name} is not a file: name the file of the model")
            raise FileNotFoundError(path)
        if (count := path.stat().st_size) > LARGEST_TEXT:
            raise BadRequest(
                f"{name} has {size(count)}, more than the text of a model: name another"
            )
        data = path.read_bytes()
    except PermissionError as error:
        raise BadRequest(f"{name} cannot be read ({error.strerror})") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRequest(f"{name} is not text in UTF-8: save it as UTF-8") from error
    if "\0" in text:
        raise BadRequest(f"{name} is not text: name the file of the model")
    # As Python reads it, so that an editor's line ends do not count as a change.
    return ModelCode(path, function, text.replace("\r\n", "\n").replace("\r", "\n"))
