"""Checkpoints: folders that count only once their marker is there.

    checkpoints/000001234/
        weights.safetensors     the network, readable by anything
        ema.safetensors         its moving average, where the recipe keeps one
        state.pt                optimiser and scaler: tensors and plain types only
        manifest.json           position, classes, input, size and hash of each file
        COMMITTED               hash of the manifest: written last

Invariants: nothing is read from a folder without a true marker, and nothing whose hash is not the
manifest's. No pickle is ever loaded: `weights_only=True` throughout.
"""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from stoker.commit import sha256_file, sha256_of, sync, write_bytes, write_json
from stoker.errors import StokerError, is_readable
from stoker.faults import reach

FORMAT = 1
"""Of a checkpoint. Absent from manifest.json: 1."""
MARKER = "COMMITTED"
FILES = ("weights.safetensors", "ema.safetensors", "state.pt")
PIECE = 1 << 18
Tensors = dict[str, Tensor]


@dataclass
class Snapshot:
    """A copy of everything that training changes, taken between two steps."""

    weights: Tensors
    ema: Tensors
    state: dict[str, Any]
    """Optimiser, scaler: what `torch.save` can write without pickling code."""
    facts: dict[str, Any]
    """Position, step, best result and what a reader must know to use the weights."""
    name: str = ""
    """The checkpoint it was read from."""


def copied(tree: Any) -> Any:
    """The same dictionaries and lists with copies, in main memory, of their tensors: what training
    does next cannot change them."""
    if isinstance(tree, Tensor):
        return tree.detach().to("cpu", copy=True)
    if isinstance(tree, dict):
        return {name: copied(value) for name, value in tree.items()}
    return [copied(value) for value in tree] if isinstance(tree, list | tuple) else tree


def contiguous(tensors: Tensors) -> Tensors:
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def write_checkpoint(folder: Path, snapshot: Snapshot) -> int:
    """Write a checkpoint: files, then the manifest, then the marker. Returns its size."""
    reach("save:begun")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    reach("save:folder")
    files = {"weights.safetensors": save(contiguous(snapshot.weights))}
    if snapshot.ema:
        files["ema.safetensors"] = save(contiguous(snapshot.ema))
    buffer = io.BytesIO()
    torch.save(snapshot.state, buffer)
    files["state.pt"] = buffer.getvalue()
    listed = {}
    for name, data in files.items():
        write_pieces(folder / name, data)
        sync(folder / name)
        reach(f"{name}:synced")
        listed[name] = {"bytes": len(data), "sha256": sha256_of(data)}
    write_json(folder / "manifest.json", {**snapshot.facts, "format": FORMAT, "files": listed})
    write_bytes(folder / MARKER, sha256_file(folder / "manifest.json").encode())
    sync(folder.parent)
    return sum(len(data) for data in files.values())


def write_pieces(path: Path, data: bytes) -> None:
    """A large file, piece by piece."""
    with path.open("wb") as file:
        for begin in range(0, len(data), PIECE):
            file.write(memoryview(data)[begin : begin + PIECE])
            file.flush()
            reach(f"{path.name}:piece")


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint whose marker and file sizes are true; None for any other. Raises
    NewerFormat where a newer version wrote it."""
    try:
        text = (folder / "manifest.json").read_bytes()
        if (folder / MARKER).read_text() != sha256_of(text):
            return None
        manifest: dict[str, Any] = json.loads(text)
        if not is_readable(folder, manifest.get("format", 1), FORMAT):
            return None
        for name, listed in manifest["files"].items():
            # Only our own names: a manifest from elsewhere must not lead out of its folder.
            if name not in FILES or (folder / name).stat().st_size != listed["bytes"]:
                return None
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest


def read_checkpoint(folder: Path) -> Snapshot:
    """Read a checkpoint back, every hash checked. Raises NewerFormat where a newer version wrote
    it, StokerError where it is incomplete or damaged."""
    manifest = manifest_of(folder)
    if manifest is None:
        raise StokerError(f"{folder} is not a complete checkpoint")
    data = {}
    for name, listed in manifest["files"].items():
        data[name] = (folder / name).read_bytes()
        if sha256_of(data[name]) != listed["sha256"]:
            raise StokerError(f"{folder / name} is damaged: its hash is not the manifest's")
    ema = load(data["ema.safetensors"]) if "ema.safetensors" in data else {}
    state = torch.load(io.BytesIO(data["state.pt"]), map_location="cpu", weights_only=True)
    return Snapshot(load(data["weights.safetensors"]), ema, state, manifest, folder.name)
