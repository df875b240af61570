"""Before step 1, prove that this run can be saved and that another process can read it back.

Invariant: after `rehearse`, a checkpoint of full size was written where the real ones will go, and
another process, which knows only the folder's path, has read it and found every hash right. So a
full disk, a quota or a broken mount ends a run before its first step.

    python -P -m stoker.survive.rehearsal      reads the folder named on its standard input
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from stoker.errors import BadRequest, StokerError
from stoker.survive.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from stoker.survive.reader import Reader
from stoker.survive.storage import require_space

FOLDER = "rehearsal"


@dataclass(frozen=True)
class RehearsalResult:
    """The size and cost of a checkpoint of this run: seconds until its commit, and CPU seconds."""

    bytes: int
    seconds: float
    busy_s: float


def rehearse(checkpoints: Path, snapshot: Snapshot, reader: Reader, copies: int) -> RehearsalResult:
    """Write a checkpoint, let the reader read it, check that `copies` of it fit, and remove it.
    Raises BadRequest where the disk refuses or is too small, StokerError where reading fails."""
    folder = checkpoints / FOLDER
    began, busy = time.perf_counter(), time.thread_time()
    try:
        try:
            checkpoints.mkdir(parents=True, exist_ok=True)
            size = write_checkpoint(folder, snapshot)
        except OSError as error:
            raise BadRequest(f"cannot save a checkpoint in {checkpoints}: {error}") from error
        seconds, busy_s = time.perf_counter() - began, time.thread_time() - busy
        counts = reader.read(folder)
        if counts != contents(snapshot):
            raise StokerError(f"a checkpoint in {checkpoints} reads back as other data: {counts}")
        require_space(checkpoints, size * copies)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return RehearsalResult(size, seconds, busy_s)


def contents(snapshot: Snapshot) -> dict[str, int]:
    """Numbers of parameters, step and position: what a snapshot must still have when read back."""
    tensors = {"weights": snapshot.weights, "ema": snapshot.ema}
    counts = {name: sum(t.numel() for t in group.values()) for name, group in tensors.items()}
    return {**counts, "step": snapshot.facts["step"], "position": snapshot.facts["position"]}


if __name__ == "__main__":
    print(json.dumps(contents(read_checkpoint(Path(sys.stdin.readline().removesuffix("\n"))))))
