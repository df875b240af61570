"""Before step 1, prove that this run can be saved and that another process can read it back.

Invariant: after `rehearse`, a checkpoint of full size was written where the real ones will go, and
another process, which knows only the folder's path, has read it and found every hash right. So a
full disk, a quota or a broken mount ends a run before its first step.

    python -P -m stoker.survive.rehearsal      reads the folder named on its standard input
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.errors import BadRequest, StokerError
from stoker.host.signals import end_with_parent
from stoker.survive.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from stoker.survive.storage import require_space

FOLDER = "rehearsal"


@dataclass(frozen=True)
class RehearsalResult:
    """The size and cost of a checkpoint of this run: seconds until its commit, and CPU seconds."""

    bytes: int
    seconds: float
    busy_s: float


class Reader:
    """A process that reads a checkpoint back. Start it early: it imports torch for seconds."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stoker.survive.rehearsal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )

    def read(self, folder: Path) -> dict[str, int]:
        """The `contents` of a checkpoint. Raises StokerError where the process cannot read it."""
        output, errors = self._process.communicate(f"{folder.absolute()}\n")
        if self._process.returncode:
            reason = (errors.strip().splitlines() or ["it ended without a message"])[-1]
            raise StokerError(
                f"a checkpoint in {folder.parent} was written, but another process cannot read it: "
                f"{reason}"
            )
        return dict(json.loads(output))

    def close(self) -> None:
        """End the process, whether or not it has read anything."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


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
