"""The files of an export, read without trust: `config.json`, then the weights or the ONNX graph.

    OUT/config.json          timm's layout, with an object `stoker` that holds what Stoker needs
    OUT/model.safetensors    the weights
    OUT/model.pt2            a program of torch.export, which is never read here
    OUT/model.onnx           the same as an ONNX graph
    OUT/model.py             the code of a model of the user's own, beside its weights

Invariants: a file is read only under one of these names, where it is a plain file with the size and
the hash in `config.json`. Nothing is unpickled, and nothing is run here. torch is imported only to
read weights, so that mistakes are answered at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.commit import sha256_of
from stoker.errors import BadRequest, StokerError, is_readable
from stoker.host.limits import require_memory
from stoker.survive.manifest import is_count, quoted
from stoker.text import one_line, shown
from stoker.train.model.weight_places import CONFIG, config_of

if TYPE_CHECKING:
    from stoker.survive.checkpoint import Tensors

FORMAT = 1
"""Format number of an export."""
WEIGHTS, PROGRAM, GRAPH = "model.safetensors", "model.pt2", "model.onnx"
CODE = "model.py"
MODEL_FILES = (WEIGHTS, PROGRAM, GRAPH, CODE)
READERS = ("onnx", "onnxruntime")
"""The packages that an ONNX graph is read with."""


@dataclass(frozen=True)
class ExportFiles:
    """What an export holds: the object `stoker` of its config.json, and where its files are."""

    path: Path
    facts: Mapping[str, Any]

    @property
    def has_weights(self) -> bool:
        return WEIGHTS in self.facts["files"]

    def read(self, name: str) -> bytes:
        """The bytes of a model file. Raises StokerError where they are not those of the export."""
        file, listed = self.path / name, self.facts["files"][name]
        try:
            # Not through a link, which could lead anywhere; the size first, so that no huge file
            # is read into memory.
            if file.is_symlink() or not file.is_file() or file.stat().st_size != listed["bytes"]:
                raise StokerError(f"{file} is damaged: its size is not the one in {CONFIG}")
            require_memory(listed["bytes"])
            data = file.read_bytes()
        except OSError as error:
            raise StokerError(f"cannot read {file}: {error.strerror}") from error
        if sha256_of(data) != listed["sha256"]:
            raise StokerError(f"{file} is damaged: its hash is not the one in {CONFIG}")
        return data

    def weights(self) -> Tensors:
        """The weights. Raises StokerError where they are damaged."""
        from safetensors.torch import load

        data = self.read(WEIGHTS)
        try:
            return load(data)
        except Exception as error:
            if isinstance(error, MemoryError) or "alloc" in str(error):
                raise  # a lack of memory says nothing about the file
            reason = one_line(str(error))
            raise StokerError(f"{self.path / WEIGHTS} holds no weights: {reason}") from error


def is_export(path: Path) -> bool:
    """Whether a folder has the config.json of an export by Stoker, damaged or not."""
    try:
        return "stoker" in config_of(path)
    except (OSError, StokerError):
        return False


def open_export(path: Path) -> ExportFiles:
    """The files of an export that can be used. Raises NewerFormat where a newer version wrote it,
    BadRequest where it holds nothing that is safe to load, StokerError where it is damaged."""
    facts = config_of(path).get("stoker")
    file = path / CONFIG
    if not isinstance(facts, dict):
        raise StokerError(f"{file} is damaged: its 'stoker' is wrong")
    number = facts.get("format")
    if not is_readable(path, number, FORMAT):
        raise StokerError(f"{file} is damaged: its format is {quoted(number)}")
    if trouble := files_trouble(facts.get("files")):
        raise StokerError(f"{file} is damaged: {trouble}")
    if facts["files"].keys() == {PROGRAM}:
        raise BadRequest(
            f"{shown(str(path))} holds only {PROGRAM}, which Stoker does not load, because a .pt2 "
            "file can hold code: export again with --to torch,safetensors"
        )
    return ExportFiles(path, facts)


def files_trouble(files: object) -> str:
    """What is wrong with the list of files; empty where nothing is."""
    if not isinstance(files, dict) or not files:
        return "it lists no files"
    for name, facts in files.items():
        if name not in MODEL_FILES:  # a name must not lead out of the folder
            return f"it lists a file {quoted(name)}"
        if not isinstance(facts, dict) or not isinstance(facts.get("sha256"), str):
            return f"it has no hash of {name}"
        if not is_count(facts.get("bytes")):
            return f"it has no size of {name}"
    return ""


def require_packages(*names: str) -> None:
    """Raise BadRequest where one of these packages of the extra `onnx` is missing."""
    for name in names:
        if find_spec(name) is None:
            raise BadRequest(
                f"ONNX needs the package {name}, which is not installed: pip install {name}"
            )
