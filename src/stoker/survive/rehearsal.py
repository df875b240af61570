"""Before step 1: prove that this run can be saved, and that a fresh process can read it back.

Invariant: whoever passes has written a checkpoint of full size where the real ones will go, and
another process, which knows nothing but the folder's name, has read it with every hash right. A
full disk, a quota or a broken mount ends a run before it has cost anything.

    python -m stoker.survive.rehearsal      reads the folder named on its standard input
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stoker.commit import UNABLE
from stoker.errors import BadRequest, StokerError
from stoker.host.signals import end_with_parent
from stoker.survive.checkpoint import Snapshot, read_checkpoint, write_checkpoint

FOLDER = "rehearsal"


@dataclass(frozen=True)
class Rehearsed:
    """What a full-size checkpoint of this run is like."""

    bytes: int
    seconds: float
    """Until it was committed."""
    busy_s: float
    """Seconds of a core."""


class Reader:
    """A fresh process that reads a checkpoint back. Started early: importing torch takes seconds,
    which pass while the network is built."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stoker.survive.rehearsal"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=partial(end_with_parent, os.getpid()),
        )

    def read(self, folder: Path) -> dict[str, int]:
        """What it found in a checkpoint; raises what it could not read."""
        found, said = self._process.communicate(f"{folder.absolute()}\n")
        if self._process.returncode:
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise StokerError(
                f"a checkpoint written to {folder.parent} does not read back in another process: "
                f"{last[0]}"
            )
        counts: dict[str, int] = json.loads(found)
        return counts

    def close(self) -> None:
        """Nobody needs it any more, read or not."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def rehearse(checkpoints: Path, snapshot: Snapshot, reader: Reader, copies: int) -> Rehearsed:
    """Write, read back elsewhere, make sure of room for `copies` more, remove."""
    folder = checkpoints / FOLDER
    began, busy = time.perf_counter(), time.thread_time()
    try:
        try:
            size = write_checkpoint(folder, snapshot)
        except OSError as error:
            raise BadRequest(f"cannot save a checkpoint in {checkpoints}: {error}") from error
        seconds, busy_s = time.perf_counter() - began, time.thread_time() - busy
        counts = reader.read(folder)
        if counts != contents(snapshot):
            raise StokerError(f"a checkpoint written to {checkpoints} reads back as {counts}")
        make_sure_of_room(checkpoints, size * copies)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Rehearsed(size, seconds, busy_s)


def contents(snapshot: Snapshot) -> dict[str, int]:
    """Numbers by which a snapshot is known again."""
    tensors = {"weights": snapshot.weights, "ema": snapshot.ema}
    counts = {name: sum(t.numel() for t in group.values()) for name, group in tensors.items()}
    return {**counts, "step": snapshot.facts["step"], "position": snapshot.facts["position"]}


def make_sure_of_room(folder: Path, needed: int) -> None:
    """Refuse where the disk, or the quota of whoever runs this, has no room for so many bytes."""
    free = shutil.disk_usage(folder).free
    probe = folder / ".room"
    try:
        number = reserve(probe, needed) if free >= needed else errno.ENOSPC
    finally:
        probe.unlink(missing_ok=True)
    if number in (errno.ENOSPC, errno.EDQUOT):
        limit = "the quota leaves less" if number == errno.EDQUOT else f"{free / 1e6:,.0f} MB free"
        raise BadRequest(
            f"the checkpoints of this run need {needed / 1e6:,.0f} MB in {folder}, {limit}: "
            "make room, lower --keep-checkpoints, or name another --run"
        )


def reserve(path: Path, size: int) -> int:
    """Ask the file system for so many bytes, unwritten: the one question that a quota answers too.
    Its error number, 0 where it agrees or has no such call."""
    if sys.platform != "linux":
        return 0
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.fallocate(file, 0, ctypes.c_int64(0), ctypes.c_int64(size))
        number = ctypes.get_errno() if failed else 0
    finally:
        os.close(file)
    return 0 if number in UNABLE else number


if __name__ == "__main__":
    print(json.dumps(contents(read_checkpoint(Path(sys.stdin.readline().removesuffix("\n"))))))
