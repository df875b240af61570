"""Several ranks on this machine: plain processes that meet through a file.

Invariants: the ranks run the same command as the user typed. A signal to the launcher reaches each
rank once: they live in sessions of their own, so that a terminal's Ctrl-C does not come twice. If
one rank fails, the others are ended; if the launcher dies, the kernel tells the ranks to stop.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from stoker.errors import FINISHED, INTERRUPTED
from stoker.fleet.local import STOP_SIGNALS, end_with_parent, usable_cores

MEETING_FILE = "STOKER_MEETING_FILE"
"""Where ranks of one launch meet."""
GRACE_S = 20.0
"""How long other ranks may take to notice that one has failed, before they are told, then ended."""
ORDERLY = (FINISHED, INTERRUPTED)
_POLL_S = 0.05


@dataclass(frozen=True)
class Ended:
    """How the ranks ended: their exit codes, and the signal that was passed on to them, if any."""

    codes: list[int]
    signalled: signal.Signals | None


def launch(
    ranks: int, arguments: Sequence[str], log: Path, extra: Mapping[str, str] | None = None
) -> Ended:
    """Run `stoker ARGUMENTS` on some ranks until all are gone; standard error goes to the log."""
    meeting = Path(tempfile.mkdtemp(prefix="stoker-"))
    passed_on: list[signal.Signals] = []
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        passed_on.append(signal.Signals(number))
        signal_all(running, signal.Signals(number))

    before = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
    try:
        with log.open("ab") as errors:
            for rank in range(ranks):
                running.append(  # noqa: PERF401 - a signal must find those that run already
                    subprocess.Popen(
                        [sys.executable, "-m", "stoker", *arguments],
                        env={**environment(rank, ranks, meeting / "ranks"), **(extra or {})},
                        stderr=errors,
                        start_new_session=True,
                        preexec_fn=end_with_parent,
                    )
                )
        wait_for_all(running)
        return Ended([rank.returncode for rank in running], next(iter(passed_on), None))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        shutil.rmtree(meeting, ignore_errors=True)


def environment(rank: int, ranks: int, meeting: Path) -> dict[str, str]:
    """The variables that torch.distributed and our own `Ranks.join` read."""
    return {
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        MEETING_FILE: str(meeting),
        "OMP_NUM_THREADS": str(max(1, usable_cores() // ranks)),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }


def wait_for_all(running: list[subprocess.Popen[bytes]]) -> None:
    """Until every rank has ended; once one has failed, the others get some time, then a signal."""
    failed_at = float("inf")
    warned = False
    while any(rank.poll() is None for rank in running):
        time.sleep(_POLL_S)
        now = time.monotonic()
        if any(rank.poll() not in (None, *ORDERLY) for rank in running):
            failed_at = min(failed_at, now)
        if now - failed_at > GRACE_S and not warned:
            signal_all(running, signal.SIGTERM)
            warned = True
        if now - failed_at > 2 * GRACE_S:
            signal_all(running, signal.SIGKILL)


def signal_all(running: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for rank in running:
        if rank.poll() is None:
            rank.send_signal(number)
