"""One checkpoint: a folder that counts only once its marker exists.

    checkpoints/000001234/
        weights.safetensors     the model, readable by any program
        ema.safetensors         its moving average, where the recipe keeps one
        state.pt                optimiser and scaler: tensors and plain types only
        manifest.json           position, classes, input, size and hash of each file
        COMMITTED               hash of the manifest: written last

Invariants: nothing is read from a folder whose marker is missing or wrong, and no file whose hash
differs from the manifest. No pickled code is loaded: `weights_only=True` everywhere.
"""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from stoker.commit import remove, sha256_file, sha256_of, sync, write_bytes, write_json
from stoker.errors import StokerError
from stoker.faults import reach
from stoker.survive.manifest import FORMAT, MARKER, damaged, read_manifest
from stoker.text import one_line

CHUNK = 1 << 18
Tensors = dict[str, Tensor]


@dataclass
class Snapshot:
    """A copy of all training state, taken between two steps."""

    weights: Tensors
    ema: Tensors
    state: dict[str, Any]
    """Optimiser and scaler: what `torch.save` writes without pickled code."""
    facts: dict[str, Any]
    """Position, step, best result, and what a program needs to use the weights."""
    name: str = ""
    """The checkpoint that it was read from."""


def copy_to_cpu(tree: Any) -> Any:
    """A copy of nested dictionaries and lists in main memory, which training no longer changes."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {name: copy_to_cpu(value) for name, value in tree.items()}
    return [copy_to_cpu(value) for value in tree] if isinstance(tree, list | tuple) else tree


def contiguous(tensors: Tensors) -> Tensors:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def write_checkpoint(folder: Path, snapshot: Snapshot) -> int:
    """Write the files, the manifest, then the marker; returns the files' bytes. Raises OSError."""
    reach("save:begun")
    remove(folder)
    with suppress(FileExistsError):
        folder.parent.mkdir()  # not its parents: a run directory that was moved is not made again
    folder.mkdir()
    reach("save:folder")
    files = {"weights.safetensors": save(contiguous(snapshot.weights))}
    if snapshot.ema:
        files["ema.safetensors"] = save(contiguous(snapshot.ema))
    buffer = io.BytesIO()
    torch.save(snapshot.state, buffer)
    files["state.pt"] = buffer.getvalue()
    listed = {}
    for name, data in files.items():
        write_chunks(folder / name, data)
        sync(folder / name)
        reach(f"{name}:synced")
        listed[name] = {"bytes": len(data), "sha256": sha256_of(data)}
    write_json(folder / "manifest.json", {**snapshot.facts, "format": FORMAT, "files": listed})
    write_bytes(folder / MARKER, sha256_file(folder / "manifest.json").encode())
    sync(folder.parent)
    return sum(len(data) for data in files.values())


def write_chunks(path: Path, data: bytes) -> None:
    """Write a large file in chunks, each of which is a place for a fault."""
    with path.open("wb") as file:
        for begin in range(0, len(data), CHUNK):
            file.write(memoryview(data)[begin : begin + CHUNK])
            file.flush()
            reach(f"{path.name}:piece")


def read_checkpoint(folder: Path) -> Snapshot:
    """Read a checkpoint and check every hash. Raises NewerFormat where a newer version wrote it,
    StokerError where it is incomplete or damaged, OSError where it cannot be read."""
    manifest = read_manifest(folder)
    data = {}
    for name, listed in manifest["files"].items():
        data[name] = (folder / name).read_bytes()
        if sha256_of(data[name]) != listed["sha256"]:
            raise damaged(folder / name)
    try:
        weights = load(data["weights.safetensors"])
        ema = load(data["ema.safetensors"]) if "ema.safetensors" in data else {}
        state = torch.load(io.BytesIO(data["state.pt"]), map_location="cpu", weights_only=True)
    except Exception as error:
        if isinstance(error, MemoryError) or "alloc" in str(error):
            raise  # a lack of memory says nothing about the checkpoint
        # Right hashes, and contents that no version of Stoker writes.
        raise StokerError(f"{folder} holds no state of training: {one_line(str(error))}") from error
    if not isinstance(state, dict):
        raise StokerError(f"{folder} holds no state of training: state.pt has no dictionary")
    return Snapshot(weights, ema, state, manifest, folder.name)
