"""What a grid left behind, by the runs' own records, whichever engine ran it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.run.directory import Run
from stoker.survive.manifest import checkpoint_folder, read_manifest

TAIL = 4096
"""Bytes in which the `end` event of a run lies."""


def run_of(cell: Path) -> Path:
    """The run of a cell's folder."""
    return cell / "work" / "run" if cell.parent.name == "cells" else cell


def cells_below(folder: Path) -> list[Path]:
    """The folders of the cells that have begun."""
    return sorted([*folder.glob("runs/*"), *folder.glob("sweep/cells/*")])


def is_finished(cell: Path) -> bool:
    for events in sorted(run_of(cell).glob("attempts/*/rank0.jsonl"))[-1:]:
        with events.open("rb") as file:
            file.seek(max(0, events.stat().st_size - TAIL))
            return b'"outcome": "finished"' in file.read()
    return False


@dataclass(frozen=True)
class RunFacts:
    lr: float
    seed: int
    epochs: int
    attempts: int
    steps: int
    """Steps of all attempts."""
    repeated: int
    """Steps that more than one attempt made."""
    weights: str
    """The hash of the last weights; empty where the run has not finished."""


def facts_of(cell: Path) -> RunFacts:
    run = Run(run_of(cell))
    attempts = sorted(run.path.glob("attempts/*/rank0.jsonl"))
    steps = [step for attempt in attempts for step in steps_of(attempt)]
    weights = ""
    if is_finished(cell):
        manifest = read_manifest(checkpoint_folder(run.path, "last"))
        weights = manifest["files"]["weights.safetensors"]["sha256"]
    lr, seed, epochs = (run.record["values"][name] for name in ("lr", "seed", "epochs"))
    repeated = len(steps) - len(set(steps))
    return RunFacts(lr, seed, epochs, len(attempts), len(steps), repeated, weights)


def steps_of(attempt: Path) -> Iterator[int]:
    for line in attempt.read_bytes().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line of a process that was killed
        if event["kind"] == "step":
            yield event["step"]


def all_facts(folder: Path) -> list[RunFacts]:
    return [facts_of(cell) for cell in cells_below(folder) if Run(run_of(cell)).exists]


def recorded(folder: Path, log: Path) -> dict[str, int]:
    """How many cells have a result in the engine's own records, and how many results there are."""
    if (folder / "sweep").exists():
        ends = [json.loads(end.read_bytes()) for end in folder.glob("sweep/cells/*/leases/*.end")]
        cells = len(list(folder.glob("sweep/cells/*/result.json")))
        return {"cells": cells, "results": sum(end["outcome"] == "finished" for end in ends)}
    if (folder / "done").exists():
        cells = len(list(folder.glob("done/*")))
        return {"cells": cells, "results": cells}
    for line in reversed(log.read_text(errors="replace").splitlines()):
        if line.startswith('{"cells"'):
            counts: dict[str, int] = json.loads(line)
            return counts
    return {"cells": 0, "results": 0}
