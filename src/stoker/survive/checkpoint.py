"""Checkpoints: folders that count only once their marker is there.

    checkpoints/000001234/
        weights.safetensors     the network, readable by anything
        ema.safetensors         its moving average, where the recipe keeps one
        state.pt                optimiser and scaler: tensors and plain types only
        manifest.json           position, classes, input, size and hash of each file
        COMMITTED               hash of the manifest: written last

Invariants: nothing is read from a folder without a true marker. `last` and `best` are names in
small files; where they are missing or point at something torn, the newest valid folder is found by
looking. No pickle is ever loaded: `weights_only=True` throughout.
"""

from __future__ import annotations

import errno
import io
import json
import re
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from stoker.commit import sha256_file, sha256_of, sync, write_bytes, write_json
from stoker.errors import StokerError

MARKER = "COMMITTED"
FILES = ("weights.safetensors", "ema.safetensors", "state.pt")
NAME = re.compile(r"\d{9,}(-\d+)?")
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


@dataclass(frozen=True)
class Saved:
    """What one save cost."""

    name: str
    step: int
    position: int
    best: float | None
    """The result that made it the best so far, where it did."""
    bytes: int
    seconds: float


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
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    files = {"weights.safetensors": save(contiguous(snapshot.weights))}
    if snapshot.ema:
        files["ema.safetensors"] = save(contiguous(snapshot.ema))
    buffer = io.BytesIO()
    torch.save(snapshot.state, buffer)
    files["state.pt"] = buffer.getvalue()
    listed = {}
    for name, data in files.items():
        (folder / name).write_bytes(data)
        sync(folder / name)
        listed[name] = {"bytes": len(data), "sha256": sha256_of(data)}
    write_json(folder / "manifest.json", {**snapshot.facts, "files": listed})
    write_bytes(folder / MARKER, sha256_file(folder / "manifest.json").encode())
    sync(folder.parent)
    return sum(len(data) for data in files.values())


def manifest_of(folder: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint whose marker and file sizes are true; None for any other."""
    try:
        text = (folder / "manifest.json").read_bytes()
        if (folder / MARKER).read_text() != sha256_of(text):
            return None
        manifest: dict[str, Any] = json.loads(text)
        for name, listed in manifest["files"].items():
            # Only our own names: a manifest from elsewhere must not lead out of its folder.
            if name not in FILES or (folder / name).stat().st_size != listed["bytes"]:
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest


def read_checkpoint(folder: Path) -> Snapshot:
    """Read a checkpoint back, every hash checked."""
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


def step_and_save(name: str) -> tuple[int, int]:
    """What a checkpoint's name says: its step, and the how-manieth save of that step it is."""
    step, _, again = name.partition("-")
    return int(step), int(again or 1)


@dataclass
class Checkpoints:
    """The checkpoints of one run, saved one at a time in the background."""

    run_path: Path
    keep: int = 2
    finished: list[Saved] = field(default_factory=list)
    """Saves that have been committed since somebody last looked."""
    failures: list[StokerError] = field(default_factory=list)
    """Saves that could not be made since somebody last looked."""
    _thread: threading.Thread | None = None

    @property
    def folder(self) -> Path:
        return self.run_path / "checkpoints"

    def names(self) -> list[str]:
        """All checkpoint folders, newest first, valid or not."""
        if not self.folder.is_dir():
            return []
        found = (item.name for item in self.folder.iterdir() if NAME.fullmatch(item.name))
        return sorted(found, key=step_and_save, reverse=True)

    def pointer(self, which: str) -> str | None:
        """The checkpoint that `last` or `best` names."""
        try:
            name = (self.run_path / which).read_text().strip()
        except (OSError, ValueError):
            return None
        return name if NAME.fullmatch(name) else None

    def newest(self) -> tuple[Snapshot | None, list[str]]:
        """The newest checkpoint that reads back whole, and the names of newer ones that do not."""
        torn: list[str] = []
        for name in self.names():
            try:
                return read_checkpoint(self.folder / name), torn
            except StokerError:
                torn.append(name)
        return None, torn

    def recover(self) -> tuple[Snapshot | None, list[str]]:
        """The same, for the process that will save: pointers that a kill left behind are mended."""
        found, torn = self.newest()
        if found and self.pointer("last") != found.name:
            write_bytes(self.run_path / "last", found.name.encode())
        if found and found.facts.get("is_best") and self.pointer("best") != found.name:
            write_bytes(self.run_path / "best", found.name.encode())
        return found, torn

    def save(self, snapshot: Snapshot, *, best: bool = False) -> None:
        """Save in the background; waits for a save that is still under way."""
        self.join()
        snapshot.facts["is_best"] = best
        self._thread = threading.Thread(target=self._save, args=(snapshot,), name="stoker-save")
        self._thread.start()

    def wait(self) -> None:
        """Until the save under way is committed. A save that failed is raised here."""
        self.join()
        if self.failures:
            failure = self.failures[-1]
            self.failures.clear()
            raise failure

    def join(self) -> None:
        """Until no save is under way, however it went."""
        if self._thread:
            self._thread.join()
            self._thread = None

    def _save(self, snapshot: Snapshot) -> None:
        """Write, on a full disk once more with room made, and note how it went."""
        try:
            try:
                self.finished.append(self._write(snapshot))
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self._prune(keep=1)
                self.finished.append(self._write(snapshot))
        except Exception as error:  # the saving thread has nobody to raise to
            failure = StokerError(f"cannot save a checkpoint in {self.folder}: {error}")
            failure.__cause__ = error
            self.failures.append(failure)

    def _write(self, snapshot: Snapshot) -> Saved:
        began = time.perf_counter()
        step, position = snapshot.facts["step"], snapshot.facts["position"]
        name = self._name_for(step)
        size = write_checkpoint(self.folder / name, snapshot)
        write_bytes(self.run_path / "last", name.encode())
        if snapshot.facts["is_best"]:
            write_bytes(self.run_path / "best", name.encode())
        self._prune(self.keep)
        best = snapshot.facts["best"] if snapshot.facts["is_best"] else None
        return Saved(name, step, position, best, size, time.perf_counter() - began)

    def _name_for(self, step: int) -> str:
        """A name that no committed checkpoint has: what counts is never written over."""
        name, again = f"{step:09d}", 1
        while manifest_of(self.folder / name) is not None:
            again += 1
            name = f"{step:09d}-{again}"
        return name

    def _prune(self, keep: int) -> None:
        """Remove all but the newest few, the last and the best; torn ones before the newest too."""
        valid = [name for name in self.names() if manifest_of(self.folder / name)]
        # `last` was committed by us; a newer folder may be damaged without looking so.
        wanted = {*valid[:keep], self.pointer("last"), self.pointer("best")}
        for name in self.names():
            if name not in wanted and valid and step_and_save(name) <= step_and_save(valid[0]):
                # The marker first: a half-removed folder must not look whole.
                (self.folder / name / MARKER).unlink(missing_ok=True)
                shutil.rmtree(self.folder / name)
