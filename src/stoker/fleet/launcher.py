"""Several ranks on this machine: plain processes that meet through a file.

Invariants: the ranks run the same command as the user typed. A signal to the launcher reaches each
rank, and waits until that listens: they live in sessions of their own, so that a terminal's Ctrl-C
does not come twice. If one rank fails, the others are ended; if the launcher dies, the kernel tells
the ranks to stop.
Nothing listens: ranks find each other in a private folder, and talk over loopback.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

from stoker.commit import open_at_end
from stoker.errors import FINISHED, INTERRUPTED
from stoker.host.limits import usable_cores
from stoker.host.signals import STOP_SIGNALS, end_with_parent, block_stop_signals

MEETING_FILE = "STOKER_MEETING_FILE"
"""Where ranks of one launch meet."""
ELASTIC = "STOKER_ELASTIC"
"""Tells a rank that its peers may change: it is started again with others when it steps aside."""
DOOR = "STOKER_DOOR"
"""The socket, opened by the launcher, at which rank 0 of an elastic run is met."""
BEGAN = "STOKER_BEGAN"
"""When the command began that started this rank, in seconds since 1970."""
GRACE_S = 20.0
"""How long other ranks may take to notice that one has failed, before they are told, then ended."""
STRAGGLER_S = 5.0
"""How long other ranks may take to follow one that has stopped on request."""
PATIENCE_S = 120.0
"""How long the slowest of them may take, before it counts as failed."""
ORDERLY = (FINISHED, INTERRUPTED)
KILLS = (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
_POLL_S = 0.05


@dataclass(frozen=True)
class Ended:
    """How the ranks ended: their exit codes, and the signal that was passed on to them, if any."""

    codes: list[int]
    signalled: signal.Signals | None
    by_us: frozenset[int] = frozenset()
    """Ranks that were ended because another had failed."""

    @property
    def killed(self) -> list[str]:
        """Ranks that somebody killed, or that broke down, in words."""
        return [
            f"rank {rank} was killed ({signal.Signals(-code).name})"
            for rank, code in enumerate(self.codes)
            if code in KILLS and rank not in self.by_us
        ]


def launch(
    ranks: int,
    arguments: Sequence[str],
    log: Path,
    extra: Mapping[str, str] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run `stoker ARGUMENTS` on some ranks until all are gone; standard error goes to the log.
    `stop` tells of a signal that came before this could pass it on."""
    meeting = Path(tempfile.mkdtemp(prefix="stoker-"))
    passed_on: list[signal.Signals] = []
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        passed_on.append(signal.Signals(number))
        signal_all(running, signal.Signals(number))

    before = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
    try:
        with open_at_end(log) as errors:
            for rank in range(ranks):
                told = {**environment(rank, ranks, meeting / "ranks"), **(extra or {})}
                running.append(start(arguments, told, errors))
        if stop() and not passed_on:
            passed_on.append(signal.SIGTERM)
        for number in tuple(passed_on):
            signal_all(running, number)  # it came while some were not there yet
        by_us = wait_for_all(running)
        codes = [rank.returncode for rank in running]
        return Ended(codes, next(iter(passed_on), None), by_us)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        shutil.rmtree(meeting, ignore_errors=True)


def start(
    arguments: Sequence[str], told: Mapping[str, str], errors: IO[bytes], doors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """One rank, with the variables it is told, and the sockets that are opened for it."""
    return subprocess.Popen(
        [sys.executable, "-m", "stoker", *arguments],
        env=told,
        stderr=errors,
        pass_fds=doors,
        start_new_session=True,
        preexec_fn=partial(begin_rank, os.getpid()),
    )


def begin_rank(launcher: int) -> None:
    """Before a rank is a Python of its own, which takes a while in which nothing listens."""
    end_with_parent(launcher)
    block_stop_signals()


def environment(rank: int, ranks: int, meeting: Path) -> dict[str, str]:
    """The variables that torch.distributed and our own `Ranks.join` read."""
    return {
        **numbers(rank, ranks, rank, ranks),
        MEETING_FILE: str(meeting),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", "lo"),
    }


def numbers(rank: int, world: int, local_rank: int, local_world: int) -> dict[str, str]:
    """Who a rank is, among all and on its machine, and its share of the cores."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "OMP_NUM_THREADS": str(max(1, usable_cores() // local_world)),
    }


def is_rank() -> bool:
    """Whether this process was started as a rank by a launcher of ours."""
    return MEETING_FILE in os.environ or ELASTIC in os.environ


def wait_for_all(running: list[subprocess.Popen[bytes]]) -> frozenset[int]:
    """Until every rank has ended; once one has failed, the others get some time, then a signal. One
    that was asked to stop where it cannot wait for the others (compiling) is followed by them. The
    ranks that had to be ended."""
    failed_at = stopped_at = float("inf")
    warned = asked = False
    by_us: set[int] = set()
    while any(rank.poll() is None for rank in running):
        time.sleep(_POLL_S)
        now = time.monotonic()
        if any(rank.poll() not in (None, *ORDERLY) for rank in running):
            failed_at = min(failed_at, now)
        if any(rank.poll() == INTERRUPTED for rank in running):
            stopped_at = min(stopped_at, now)
        if now - stopped_at > STRAGGLER_S and not asked:
            signal_all(running, signal.SIGUSR1)
            asked = True
        if now - stopped_at > PATIENCE_S:
            failed_at = min(failed_at, now - GRACE_S)
        if now - failed_at > GRACE_S and not warned:
            signal_all(running, signal.SIGTERM)
            warned = True
        if now - failed_at > 2 * GRACE_S:
            by_us |= {rank for rank, process in enumerate(running) if process.poll() is None}
            signal_all(running, signal.SIGKILL)
    return frozenset(by_us)


def signal_all(running: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for rank in running:
        if rank.poll() is None:
            rank.send_signal(number)


def log_lines_since(log: Path, offset: int) -> tuple[list[str], list[str]]:
    """The lines that ranks wrote to the log after an offset in bytes, and those of them that are
    meant for the user."""
    lines = log.read_bytes()[offset:].decode(errors="replace").splitlines()
    return lines, list(dict.fromkeys(line for line in lines if line.startswith("stoker: ")))
