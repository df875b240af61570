"""The process that starts the ranks of one cell, and ends whatever they have started.

Invariants: when this process is over, no process of its cell is left, whatever ended it and in
whichever session it was: orphans become children of this process (Linux), which kills children
until it has none. When the parent dies, this process gets SIGTERM and does the same; when this
process is killed, its ranks die with it. `end.json` says how the ranks ended; it is written last.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from stoker.commit import write_json
from stoker.errors import FAILED, FINISHED
from stoker.fleet.launcher import environment, first_failure
from stoker.host.out_of_memory import kernel_kills
from stoker.host.signals import begin_helper

JOB, END, LOG = "job.json", "end.json", "log.txt"
"""The files of a cell's private folder: what to measure, how it ended, and standard error."""
GRACE_S = 3.0
"""How long other ranks may go on after one has failed: it may still write its reason."""
_POLL_S = 0.02
_PR_SET_CHILD_SUBREAPER = 36


def keep_cell(folder: Path, ranks: int, limit_s: float, memory_bytes: int) -> int:
    """Run the ranks of a cell until all have ended or the time is up. Returns 0 where each of them
    ended by itself with 0, else 1."""
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.append(number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    adopt_orphans()
    kills = kernel_kills()
    running: list[subprocess.Popen[bytes]] = []
    try:
        with (folder / LOG).open("wb") as log:
            start = partial(start_rank, ranks, folder, memory_bytes, log.fileno())
            running.extend(start(rank) for rank in range(ranks))  # those before a failure count
        timed_out, first = wait(running, time.monotonic() + limit_s, stopped)
        ended = [rank.poll() for rank in running]
    finally:
        end_groups(running)
        end_descendants()
    if stopped:
        return FAILED
    end: dict[str, Any] = {
        "codes": ended,
        "first": first,
        "timed_out": timed_out,
        "killed_by_kernel": kernel_kills() > kills,
    }
    write_json(folder / END, end)
    return FINISHED if all(code == FINISHED for code in ended) else FAILED


def start_rank(
    ranks: int, folder: Path, memory_bytes: int, log: int, rank: int
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "stoker", "bench", "cell", str(folder)],
        env=environment(rank, ranks, folder / "ranks"),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=partial(prepare, os.getpid(), memory_bytes),
    )


def prepare(keeper: int, memory_bytes: int) -> None:
    """Runs in the new process before Python is loaded."""
    begin_helper(keeper)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def wait(
    running: Sequence[subprocess.Popen[bytes]], until: float, stopped: Sequence[int]
) -> tuple[bool, int | None]:
    """Wait for the ranks; returns whether the time was up, and the rank that failed first."""
    first, give_up = None, float("inf")
    while any(rank.poll() is None for rank in running):
        time.sleep(_POLL_S)
        now = time.monotonic()
        if first is None:
            first = first_failure([rank.poll() for rank in running])
            give_up = now + GRACE_S if first is not None else give_up
        if stopped or now > min(until, give_up):
            return now > until and first is None, first
    return False, first_failure([rank.poll() for rank in running]) if first is None else first


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_groups(running: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the process groups of ranks that still run: all there is to do on other kernels."""
    for rank in running:
        if rank.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def end_descendants() -> None:
    """Kill the children of this process, and theirs as they arrive here, until none is left."""
    while children := children_of(os.getpid()):
        for pid in children:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def children_of(pid: int) -> list[int]:
    """The children of all threads of a process; none where the kernel does not say."""
    children: list[int] = []
    with suppress(OSError):
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            with suppress(OSError):
                children += [int(word) for word in path.read_text().split()]
    return children
