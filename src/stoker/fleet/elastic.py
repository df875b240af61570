"""Ranks on nodes that come and go: a launcher on each node, and rounds of training between them.

Invariants: a round has fixed ranks; whoever is lost or wants to join ends it, and the next begins
from the newest checkpoint with those who are there. Ranks say with their exit code what their
launcher does next. No wait is without an end, and a launcher never leaves a rank behind. If the
rendezvous is gone, every launcher ends: whatever started them starts them again.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from stoker.commit import open_at_end
from stoker.errors import (
    BAD_REQUEST,
    FAILED,
    FINISHED,
    INTERRUPTED,
    STEPPED_ASIDE,
    StokerError,
)
from stoker.fleet.addresses import Endpoint, Nodes, interface_of
from stoker.fleet.launcher import DOOR, ELASTIC, numbers, signal_all, start
from stoker.fleet.rendezvous import Rendezvous, Round
from stoker.fleet.signed_store import shared_key

KEY_FILE = "rendezvous.key"
SAVE_S = 100.0
"""How long ranks may take to save when they are asked to."""
NOTICE_S = 5.0
"""How long ranks may take to notice a lost peer, before they are told, then ended."""
_POLL_S = 0.2
Running = list[subprocess.Popen[bytes]]


@dataclass(frozen=True)
class Launch:
    """What to run on this node, and how to follow it."""

    ranks: int
    arguments: Sequence[str]
    run_path: Path
    extra: Mapping[str, str]
    stop: Callable[[], bool]
    progress: Callable[[], int]
    """Steps that the run has made so far."""
    tell: Callable[[Path, int, int], None]
    """Shows what ranks have written to the log from a place on, by the code it came to."""


def launch(plan: Launch, place: Endpoint, nodes: Nodes) -> int:
    """Take part in a run until it is finished or this node has to leave; the exit code."""
    key = shared_key(plan.run_path / KEY_FILE)
    with closing(Rendezvous(place, nodes, key, plan.stop)) as rendezvous:
        return rounds(plan, rendezvous)


def rounds(plan: Launch, rendezvous: Rendezvous) -> int:
    """One round after the other, as long as there is something to do; the exit code."""
    log = plan.run_path / f"launcher-{rendezvous.local_address}.log"
    failed_at = -1
    while True:
        round = rendezvous.next_round()
        said_before = log.stat().st_size if log.exists() else 0
        code = INTERRUPTED
        try:
            code = take_part(plan, rendezvous, round, log)
        finally:
            plan.tell(log, said_before, code)
        if code in (FINISHED, INTERRUPTED, BAD_REQUEST):
            rendezvous.part(round, finished=code != INTERRUPTED)
        if code == FAILED and (steps := plan.progress()) > failed_at:
            failed_at = steps
        elif code != STEPPED_ASIDE:
            return code


def take_part(plan: Launch, rendezvous: Rendezvous, round: Round, log: Path) -> int:
    """Run this node's ranks through one round; what their exit codes add up to."""
    running: Running = []
    try:
        with open_at_end(log) as errors:
            for local in range(plan.ranks):
                told = {**environment(plan, rendezvous, round, local), **plan.extra}
                doors = [round.door.fileno()] if round.door and local == 0 else []
                running.append(start(plan.arguments, told, errors, doors))
        if round.door:
            round.door.close()
        return verdict(follow(plan, rendezvous, round, running), plan.stop())
    except StokerError:
        end(running, signal.SIGUSR1, 2 * NOTICE_S)
        raise
    finally:
        signal_all(running, signal.SIGKILL)


def environment(
    plan: Launch, rendezvous: Rendezvous, round: Round, local_rank: int
) -> dict[str, str]:
    """The variables that one rank of the round is told."""
    rank, world = round.node * plan.ranks + local_rank, round.nodes * plan.ranks
    interface = interface_of(rendezvous.local_address)
    told = {
        **numbers(rank, world, local_rank, plan.ranks),
        ELASTIC: "1",
        "MASTER_ADDR": round.address,
        "MASTER_PORT": str(round.port),
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", interface),
    }
    if round.door and local_rank == 0:
        told[DOOR] = str(round.door.fileno())
    return told


def follow(plan: Launch, rendezvous: Rendezvous, round: Round, running: Running) -> list[int]:
    """Until all ranks of this node have ended, by themselves or because it is time to."""
    while all(rank.poll() in (None, FINISHED) for rank in running):
        if all(rank.poll() == FINISHED for rank in running):
            return [FINISHED] * len(running)
        if plan.stop():
            return end(running, signal.SIGUSR1, SAVE_S)
        news = rendezvous.news(round)
        if news.lost:
            # The network swallows everything: ranks would wait for their lost peers for long.
            return end(running, signal.SIGTERM, NOTICE_S)
        if news.waiting:
            return end(running, signal.SIGTERM, SAVE_S)
        time.sleep(_POLL_S)
    if any(rank.poll() in (INTERRUPTED, STEPPED_ASIDE) for rank in running):
        wait(running, SAVE_S)
    else:
        wait(running, NOTICE_S)
    return end(running, signal.SIGTERM, NOTICE_S)


def end(running: Running, number: signal.Signals, patience_s: float) -> list[int]:
    """Tell the ranks, then end them. One that our signals killed had not begun to train, or was
    stuck with a lost peer: it counts as one that stepped aside."""
    before = [rank.poll() for rank in running]
    signal_all(running, number)
    wait(running, patience_s)
    signal_all(running, signal.SIGKILL)
    codes = [rank.wait() for rank in running]
    ours = (-number, -signal.SIGKILL)
    return [
        STEPPED_ASIDE if then is None and code in ours else code
        for then, code in zip(before, codes, strict=True)
    ]


def wait(running: Running, patience_s: float) -> None:
    give_up = time.monotonic() + patience_s
    while any(rank.poll() is None for rank in running) and time.monotonic() < give_up:
        time.sleep(_POLL_S / 4)


def verdict(codes: Sequence[int], stopped: bool) -> int:
    """What this node does next, from what its ranks said."""
    if all(code == FINISHED for code in codes):
        return FINISHED
    if BAD_REQUEST in codes:
        return BAD_REQUEST
    if not set(codes) <= {FINISHED, INTERRUPTED, STEPPED_ASIDE}:
        return FAILED
    return INTERRUPTED if stopped or INTERRUPTED in codes else STEPPED_ASIDE
