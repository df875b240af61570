"""Several ranks on this machine: plain processes that meet through a file.

Invariants: the ranks run the command that the user typed. A signal to the launcher is passed on to
each rank, and stays pending until the rank listens. Ranks have sessions of their own, so that
Ctrl-C in a terminal does not reach them twice. If one rank fails, the others are ended, and the
first failure is named: others may fail because of it (NCCL aborts them). If the launcher dies, the
kernel sends the ranks a stop signal. No port is open to other machines: ranks
meet through a file in a private folder, and exchange data over loopback.
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
from stoker.errors import FINISHED, INTERRUPTED, BadRequest
from stoker.host.limits import usable_cores
from stoker.host.signals import (
    STOP_SIGNALS,
    await_signals,
    block_stop_signals,
    end_with_parent,
    stop_signals,
)

RENDEZVOUS_FILE = "STOKER_MEETING_FILE"
"""The environment variable with the path of the file through which ranks meet."""
ELASTIC = "STOKER_ELASTIC"
"""Set for ranks of an elastic run: one that steps aside is started again with other peers."""
LISTENER = "STOKER_DOOR"
"""The file descriptor of the socket, opened by the launcher, on which rank 0 listens."""
ROUND_KEY = "STOKER_ROUND_KEY"
"""The key of a round, in hexadecimal: ranks on nodes sign their addresses with it."""
START_TIME = "STOKER_BEGAN"
"""When the launcher's command began, in seconds since 1970."""
COMMAND_START = "STOKER_COMMAND_START"
"""The same, by the machine's monotonic clock."""
GRACE_S = 20.0
"""How long other ranks may take to notice that one has failed, before SIGTERM, then SIGKILL."""
STRAGGLER_S = 5.0
"""How long other ranks may take to follow one that stopped on request, before they are asked."""
PATIENCE_S = 120.0
"""How long the slowest of them may take, before it counts as failed."""
KILLS = (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
_POLL_S = 0.05
Processes = list[subprocess.Popen[bytes]]


@dataclass(frozen=True)
class LaunchResult:
    """How the ranks ended: their exit codes."""

    codes: list[int]
    stop_signal: signal.Signals | None
    """The first signal that was passed on to the ranks."""
    first: int | None = None
    """The rank that failed or was killed first."""

    @property
    def killed(self) -> str:
        """A phrase for the rank that crashed, or that another process killed, first; empty if a
        rank ended by itself before."""
        code = FINISHED if self.first is None else self.codes[self.first]
        name = signal.Signals(-code).name if code in KILLS else ""
        return f"rank {self.first} was killed ({name})" if name else ""

    @property
    def cause(self) -> str:
        """A phrase for the first rank that failed or was killed; some rank, if none was first."""
        name = "a rank" if self.first is None else f"rank {self.first}"
        return self.killed or f"{name} failed"


def launch(
    ranks: int,
    arguments: Sequence[str],
    log: Path,
    extra: Mapping[str, str] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> LaunchResult:
    """Run `stoker ARGUMENTS` on some ranks until all have ended; their standard error goes to the
    log. `stop` returns whether a stop signal arrived before this function could pass it on."""
    folder = private_folder("stoker-")
    passed_on: list[signal.Signals] = []
    running: Processes = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        passed_on.append(signal.Signals(number))
        signal_all(running, signal.Signals(number))

    handlers = {number: signal.signal(number, pass_on) for number in stop_signals()}
    try:
        with open_at_end(log) as errors:
            for rank in range(ranks):
                variables = {**environment(rank, ranks, folder / "ranks"), **(extra or {})}
                running.append(start(arguments, variables, errors))
        if stop() and not passed_on:
            passed_on.append(signal.SIGTERM)
        for number in tuple(passed_on):
            signal_all(running, number)  # it arrived before all ranks were started
        first = wait_for_all(running)
        if not passed_on and any(-rank.returncode in STOP_SIGNALS for rank in running):
            await_signals()
        codes = [rank.returncode for rank in running]
        return LaunchResult(codes, next(iter(passed_on), None), first)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        shutil.rmtree(folder, ignore_errors=True)


def private_folder(prefix: str) -> Path:
    """A new temporary folder of this user. Raises BadRequest where none can be made."""
    try:
        return Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise BadRequest(
            f"no temporary folder can be made ({error.strerror}): set TMPDIR to a folder that can "
            "be written and has some space"
        ) from error


def start(
    arguments: Sequence[str], env: Mapping[str, str], errors: IO[bytes], sockets: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start one rank with this environment; it inherits these sockets."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "stoker", *arguments],
        env=env,
        stderr=errors,
        pass_fds=sockets,
        start_new_session=True,
        preexec_fn=partial(prepare_rank, os.getpid()),
    )


def prepare_rank(launcher: int) -> None:
    """Runs in the new process before Python is loaded: signals stay pending until it listens."""
    end_with_parent(launcher)
    block_stop_signals()


def environment(rank: int, ranks: int, rendezvous_file: Path) -> dict[str, str]:
    """The environment of a rank on one machine, as torch.distributed and `Ranks.join` read it."""
    return {
        **rank_variables(rank, ranks, rank, ranks),
        RENDEZVOUS_FILE: str(rendezvous_file),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", "lo"),
    }


def rank_variables(rank: int, world: int, local_rank: int, local_world: int) -> dict[str, str]:
    """This process's environment, with the numbers of a rank and its share of the cores."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(local_world),
        "OMP_NUM_THREADS": str(max(1, usable_cores() // local_world)),
    }


def is_rank() -> bool:
    """Whether Stoker's launcher started this process as a rank."""
    return RENDEZVOUS_FILE in os.environ or ELASTIC in os.environ


def joins_others() -> bool:
    """Whether this process is to join ranks of other machines, or of another launcher. They wait
    for it inside torch, where they hear no signal: so it does not leave before it has joined."""
    return "WORLD_SIZE" in os.environ and RENDEZVOUS_FILE not in os.environ


def wait_for_all(running: Processes) -> int | None:
    """Wait until every rank has ended; returns the one that failed or was killed first. The others
    then get a signal; those of one that stopped alone (it was compiling) are asked to."""
    failed_at = stopped_at = float("inf")
    sent_stop = sent_term = sent_kill = False
    first = None
    while any(rank.poll() is None for rank in running):
        time.sleep(_POLL_S)
        now = time.monotonic()
        if first is None and not sent_kill:
            first = first_failure([rank.poll() for rank in running])
        if first is not None:
            failed_at = min(failed_at, now)
        if any(rank.poll() == INTERRUPTED for rank in running):
            stopped_at = min(stopped_at, now)
        if now - stopped_at > STRAGGLER_S and not sent_stop:
            signal_all(running, signal.SIGUSR1)
            sent_stop = True
        if now - stopped_at > PATIENCE_S:
            failed_at = min(failed_at, now - GRACE_S)
        if now - failed_at > GRACE_S and not sent_term:
            signal_all(running, signal.SIGTERM)
            sent_term = True
        if now - failed_at > 2 * GRACE_S:
            signal_all(running, signal.SIGKILL)
            sent_kill = True
    if first is None and not sent_kill:
        first = first_failure([rank.poll() for rank in running])
    return first


def first_failure(codes: Sequence[int | None]) -> int | None:
    """The rank to name, if any has failed yet: one that was killed rather than one that noticed."""
    failed = [rank for rank, code in enumerate(codes) if code not in (None, FINISHED, INTERRUPTED)]
    return min(failed, key=lambda rank: codes[rank] not in KILLS, default=None)


def signal_all(running: Processes, number: signal.Signals) -> None:
    """Send a signal to every rank that has not ended."""
    for rank in running:
        if rank.poll() is None:
            rank.send_signal(number)


def log_lines_since(log: Path, offset: int) -> tuple[list[str], list[str]]:
    """The lines of a log after an offset in bytes, and those of them that are for the user."""
    lines = log.read_bytes()[offset:].decode(errors="replace").splitlines()
    return lines, list(dict.fromkeys(line for line in lines if line.startswith("stoker: ")))
