"""The tensors in a file of weights, from safetensors or from PyTorch's own format.

Invariants: no pickled code is run: `weights_only=True` everywhere. The bytes that are hashed are
the bytes that are loaded. A file that would not fit into memory is refused before it is read, and
so is an archive that would unpack to more.
"""

from __future__ import annotations

import argparse
import io
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from stoker.commit import sha256_of
from stoker.errors import BadRequest
from stoker.host.limits import usable_memory
from stoker.host.out_of_memory import is_out_of_memory
from stoker.text import one_line, shown
from stoker.train.model.weight_places import WeightPlace

COPIES = 2
"""Copies of the weights that are in memory at once: the bytes of the file, and the tensors."""
NESTED = (
    *("state_dict_ema", "model_ema", "ema", "state_dict", "model_state_dict", "model"),
    *("module", "net"),
)
"""Where training programs keep the weights in their files; averages come first, as in timm."""
DEPTH = 4
"""How deep these names are followed."""
PREFIXES = ("module.", "_orig_mod.", "model.")
"""What DDP, torch.compile and others put before each name."""
PICKLE = b"\x80"
"""The first byte of a pickle."""
_REASON = re.compile(r"WeightsUnpickler error:\s*(.*)")
_CODE = re.compile(r"(?:GLOBAL|class|function) ([\w.]+)")


@dataclass(frozen=True)
class FileTensors:
    """The tensors of a file by name, the hash of the file, and the model that it names, if any."""

    tensors: Mapping[str, Tensor]
    sha256: str
    model: str | None = None


def read_tensors(place: WeightPlace) -> FileTensors:
    """The tensors of a file. Raises BadRequest where it is damaged, too large or holds none."""
    name, size, memory = place.name, place.file.stat().st_size, usable_memory()
    if COPIES * size > memory:
        raise too_large(name, size, memory)
    try:
        data = place.file.read_bytes()
    except (OSError, MemoryError) as error:
        raise BadRequest(f"--weights {name} cannot be read: {one_line(str(error))}") from error
    sha256 = sha256_of(data)
    if place.sha256 not in (None, sha256):
        raise BadRequest(
            f"--weights {name}: {shown(str(place.file))} is damaged: its hash is not the one in "
            "the manifest"
        )
    if is_safetensors(data):
        try:
            return FileTensors(load(data), sha256)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise damaged(name, "safetensors", error) from error
    if place.file.suffix == ".safetensors":
        raise damaged(name, "safetensors", "its header is wrong")
    content = unpickled(name, data, memory)
    tensors = state_dict_in(content)
    if not tensors:
        raise BadRequest(
            f"--weights {name} holds no state_dict: save one by torch.save(model.state_dict(), ...)"
        )
    arch = content.get("arch") if isinstance(content, Mapping) else None
    return FileTensors(tensors, sha256, arch if isinstance(arch, str) else None)


def is_safetensors(data: bytes) -> bool:
    """Whether the data begin as a safetensors file: the length of a header, then the header."""
    return 8 < int.from_bytes(data[:8], "little") < 1 << 40 and data[8:9] == b"{"


def unpickled(name: str, data: bytes, memory: int) -> Any:
    """What `torch.load` makes of the data without running code. Raises BadRequest."""
    try:
        if data[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                size = sum(entry.file_size for entry in archive.infolist())
            if size > max(memory - COPIES * len(data), COPIES * len(data)):
                raise too_large(name, size, memory)
        # Programs keep their flags in their files; a Namespace is a plain table of them.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of another protocol
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except BadRequest:
        raise
    except Exception as error:  # torch raises errors of many kinds
        if is_out_of_memory(error):
            raise too_large(name, len(data), memory) from error
        text = str(error)
        if "TorchScript" in text:
            raise BadRequest(
                f"--weights {name} is a TorchScript program: save its state_dict() instead"
            ) from error
        code = _CODE.search(text)
        if code or (data[:1] == PICKLE and "Unsupported operand" in text):
            what = f"code ({code.group(1)})" if code else "code"
            raise BadRequest(
                f"--weights {name} holds pickled {what}, which is not run: save only the "
                "state_dict, or a .safetensors file"
            ) from error
        reason = _REASON.search(text)
        raise damaged(name, "PyTorch", reason.group(1) if reason else text) from error


def damaged(name: str, kind: str, reason: object) -> BadRequest:
    return BadRequest(
        f"--weights {name} is no {kind} file, or a part of one ({one_line(str(reason))[:120]}): "
        "copy or download it again"
    )


def too_large(name: str, size: int, memory: int) -> BadRequest:
    return BadRequest(
        f"--weights {name} has {size / 1e6:,.0f} MB, loading it takes twice that, and this process "
        f"may use {memory / 1e6:,.0f} MB of memory: load it on a larger machine"
    )


def state_dict_in(content: Any) -> dict[str, Tensor]:
    """The tensors by name, wherever the content has them; empty where it has none."""
    for _ in range(DEPTH):
        if not isinstance(content, Mapping):
            return {}
        tables = [content.get(key) for key in NESTED]
        inner = next((t for t in tables if isinstance(t, Mapping) and holds_tensors(t)), None)
        if inner is None:
            break
        content = inner
    return {
        name: value
        for name, value in content.items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }


def holds_tensors(table: Mapping[Any, Any]) -> bool:
    """Whether a table, or one below its usual names, has a tensor."""
    values = [
        *table.values(),
        *(v for t in table.values() if isinstance(t, Mapping) for v in t.values()),
    ]
    return any(isinstance(value, Tensor) for value in values)


def plain_name(name: str, known: Mapping[str, Tensor]) -> str:
    """A tensor's name without what programs put before it, unless the model has it so."""
    while name not in known:
        shorter = next((name.removeprefix(p) for p in PREFIXES if name.startswith(p)), None)
        if shorter is None:
            break
        name = shorter
    return name
