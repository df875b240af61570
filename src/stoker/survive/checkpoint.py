"""One checkpoint: a folder that counts only once its marker exists.

    checkpoints/000001234/
        weights.safetensors     the model, readable by any program
        ema.safetensors         its moving average, where the recipe keeps one
        state.pt                optimiser and scaler: tensors and plain types only
        manifest.json           position, classes, input, size and hash of each file
        COMMITTED               hash of the manifest: written last

Invariants: nothing is read from a folder whose marker is missing or wrong, and no file whose hash
differs from the manifest. No pickled code is loaded: `weights_only=True` everywhere. Writing
runs beside training, so it holds the interpreter lock for a millisecond or two at a time.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pickle import Pickler
from types import ModuleType
from typing import IO, Any, Protocol, cast

import torch
from safetensors.torch import load
from torch import Tensor

from stoker.commit import (
    HashedWriter,
    remove,
    sha256_file,
    sha256_of,
    sync,
    write_bytes,
    write_json,
)
from stoker.errors import StokerError
from stoker.faults import reach
from stoker.host.limits import require_memory
from stoker.survive.manifest import FORMAT, MARKER, damaged, evaluated_file, read_manifest
from stoker.text import one_line

Tensors = dict[str, Tensor]
DTYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types in a safetensors file, in the order in which safetensors writes them: largest first."""
HEADER_ALIGNMENT = 8


def nothing() -> None:
    """Nothing is left to wait for."""


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
    ready: Callable[[], None] = nothing
    """Waits until the copies are complete. The thread that saves calls it before it reads them."""


class SnapshotCopy(Protocol):
    """Copies the tensors of a snapshot to main memory, at once or beside training."""

    def __call__(self, tensor: Tensor) -> Tensor:
        """A copy, which may still be incomplete."""
        ...

    def end(self) -> Callable[[], None]:
        """Called after the last tensor of a snapshot, before training changes any of them; returns
        what waits, in another thread, until all copies are complete."""
        ...


class PlainCopy:
    """Copies the tensors of a snapshot at once."""

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", copy=True)

    def end(self) -> Callable[[], None]:
        return nothing


def copy_tree(tree: Any, copy: SnapshotCopy) -> Any:
    """Nested dictionaries and lists with a copy of each tensor, which training does not change."""
    if isinstance(tree, Tensor):
        return copy(tree)
    if isinstance(tree, dict):
        return {name: copy_tree(value, copy) for name, value in tree.items()}
    return [copy_tree(value, copy) for value in tree] if isinstance(tree, list | tuple) else tree


def write_checkpoint(folder: Path, snapshot: Snapshot) -> int:
    """Write the files, the manifest, then the marker; returns the files' bytes. Raises OSError."""
    reach("save:begun")
    snapshot.ready()
    remove(folder)
    with suppress(FileExistsError):
        folder.parent.mkdir()  # not its parents: a run directory that was moved is not made again
    folder.mkdir()
    reach("save:folder")
    writers = {"weights.safetensors": partial(write_tensors, snapshot.weights)}
    if snapshot.ema:
        writers["ema.safetensors"] = partial(write_tensors, snapshot.ema)
    writers["state.pt"] = partial(write_state, snapshot.state)
    listed, size = {}, 0
    for name, write in writers.items():
        with HashedWriter(folder / name) as file:
            write(file)
        sync(folder / name)
        reach(f"{name}:synced")
        listed[name] = {"bytes": file.bytes, "sha256": file.sha256}
        size += file.bytes
    write_json(folder / "manifest.json", {**snapshot.facts, "format": FORMAT, "files": listed})
    write_bytes(folder / MARKER, sha256_file(folder / "manifest.json").encode())
    sync(folder.parent)
    return size


def write_tensors(tensors: Tensors, file: HashedWriter) -> None:
    """Write the bytes that `safetensors.torch.save` makes, which holds the interpreter lock all the
    time and needs a copy of everything. Raises KeyError for a type that the format does not have.
    """
    places = {dtype: place for place, dtype in enumerate(DTYPES)}
    names = sorted(tensors, key=lambda name: (places[tensors[name].dtype], name))
    encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    entries, begin = [], 0
    for name in names:
        release_lock()
        tensor, end = tensors[name], begin + tensors[name].nbytes
        dtype, shape = DTYPES[tensor.dtype], list(tensor.shape)
        entry = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        entries.append(f"{encode(name)}:{encode(entry)}")
        begin = end
    header = f"{{{','.join(entries)}}}".encode()
    header += b" " * (-len(header) % HEADER_ALIGNMENT)
    file.write(len(header).to_bytes(8, "little") + header)
    for name in names:
        # Row by row, as the format requires; a copy only of what is laid out in another way.
        rows = tensors[name].contiguous().reshape(-1)
        file.write(rows.view(torch.uint8).numpy().data)


def write_state(state: dict[str, Any], file: HashedWriter) -> None:
    """Write the bytes that `torch.save` makes. Raises TypeError for what cannot be pickled."""
    torch.save(state, cast("IO[bytes]", file), pickle_module=lock_sharing_pickle)


def release_lock() -> None:
    """Let a thread that waits for the interpreter lock have it now, not after 5 ms."""
    time.sleep(0)


class LockSharingPickler(Pickler):
    """Releases the interpreter lock before each tensor: otherwise C code holds it throughout."""

    def reducer_override(self, value: object) -> Any:
        release_lock()
        return NotImplemented


lock_sharing_pickle = ModuleType("lock_sharing_pickle")
lock_sharing_pickle.Pickler = LockSharingPickler  # type: ignore[attr-defined]


def read_weights(folder: Path) -> tuple[Tensors, dict[str, Any]]:
    """The weights that evaluation uses (the moving average, where there is one), and the manifest;
    the optimiser's state is not read. Raises as `read_checkpoint` does."""
    manifest = read_manifest(folder)
    name = evaluated_file(manifest)
    data = intact_file(folder / name, manifest)
    try:
        return load(data), manifest
    except Exception as error:
        if isinstance(error, MemoryError) or "alloc" in str(error):
            raise  # a lack of memory says nothing about the checkpoint
        raise StokerError(f"{folder / name} holds no weights: {one_line(str(error))}") from error


def intact_file(path: Path, manifest: Mapping[str, Any]) -> bytes:
    """A file that a manifest lists. Raises StokerError where its hash is another one, OSError where
    it cannot be read or is larger than the memory here."""
    listed = manifest["files"][path.name]
    require_memory(listed["bytes"])
    data = path.read_bytes()
    if sha256_of(data) != listed["sha256"]:
        raise damaged(path)
    return data


def read_checkpoint(folder: Path) -> Snapshot:
    """Read a checkpoint and check every hash. Raises NewerFormat where a newer version wrote it,
    StokerError where it is incomplete or damaged, OSError where it cannot be read."""
    manifest = read_manifest(folder)
    data = {name: intact_file(folder / name, manifest) for name in manifest["files"]}
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
