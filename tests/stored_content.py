"""Small run directories and what a store says of runs, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from memory_objects import MemoryObjects
from stoker.commit import sha256_of
from stoker.stores.lease import HeadLease
from stoker.stores.location import Location
from stoker.survive.manifest import MARKER
from stoker.survive.remote.mirror import RunMirror
from stoker.survive.remote.records import Content

PLACE = Location("s3", "bucket", "run")


def checkpoint(run: Path, step: int, text: bytes = b"weights") -> str:
    """Write a checkpoint of a few bytes; returns its name."""
    folder = run / "checkpoints" / f"{step:09d}"
    folder.mkdir(parents=True)
    files = {"weights.safetensors": text, "state.pt": b"state"}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    listed = {name: {"bytes": len(d), "sha256": sha256_of(d)} for name, d in files.items()}
    manifest = json.dumps({"step": step, "position": step, "files": listed}).encode()
    (folder / "manifest.json").write_bytes(manifest)
    (folder / MARKER).write_text(sha256_of(manifest))
    (run / "last").write_text(folder.name)
    return folder.name


def write_steps(run: Path, attempt: int, rank: int, steps: range) -> None:
    """Add the events of some steps to those of a rank."""
    path = run / "attempts" / f"{attempt:04d}" / f"rank{rank}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for step in steps:
            event = {"kind": "step", "time": 1.0, "step": step, "position": step, "batch": 1}
            event |= {"epoch": 0.0, "images": 1, "sums": [0.0, 0.0, 0.0], "lr": 0.1}
            file.write(json.dumps(event) + "\n")


def mirror_of(run: Path, objects: MemoryObjects, *, leads: bool = True) -> RunMirror:
    run.mkdir(parents=True, exist_ok=True)
    return RunMirror(run, PLACE, leads=leads, objects=(objects, objects))


def content_of(objects: MemoryObjects) -> Content:
    return Content.of(json.loads(objects.content["head.json"])["content"], objects.location)


def write_content(objects: MemoryObjects, **fields: Any) -> None:
    """Write a head with this content, given up by its holder."""
    lease = HeadLease(objects, host="another")
    lease.acquire(0.0)
    whole = {"run_format": 1, "run_id": "0" * 16, "attempt": 1, "files": {}, "checkpoints": {}}
    lease.commit(lambda _: {**whole, **fields})
    lease.release()
