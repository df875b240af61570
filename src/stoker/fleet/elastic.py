"""Ranks on nodes that join and leave: a launcher on each node, and rounds of training between them.

Invariants: the ranks of a round are fixed. A node that is lost or wants to join ends the round; the
next one begins from the newest checkpoint with the nodes that are there. The exit codes of its
ranks decide what a launcher does next. No wait is endless, and no rank is left behind. If the
rendezvous is lost, every launcher ends; the user or scheduler starts them again.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from stoker.commit import open_at_end
from stoker.errors import (
    BAD_REQUEST,
    FAILED,
    FINISHED,
    INTERRUPTED,
    STEPPED_ASIDE,
    Interrupted,
    StokerError,
)
from stoker.fleet.addresses import Endpoint, Nodes, interface_of
from stoker.fleet.launcher import (
    ELASTIC,
    LISTENER,
    ROUND_KEY,
    Processes,
    rank_variables,
    signal_all,
    start,
)
from stoker.fleet.rendezvous import Rendezvous, Round
from stoker.fleet.signed_store import shared_key

KEY_FILE = "rendezvous.key"
SAVE_S = 100.0
"""How long ranks may take to save and stop when they are asked to."""
NOTICE_S = 5.0
"""How long ranks may take to notice a lost peer before they receive a signal; as long again, and
they are killed."""
_POLL_S = 0.2


@dataclass(frozen=True)
class Launch:
    """What to run on this node, and how to follow it."""

    ranks: int
    arguments: Sequence[str]
    run_path: Path
    extra: Mapping[str, str]
    stop: Callable[[], bool]
    progress: Callable[[], int] = lambda: 0
    """Returns the steps that the run has made so far."""
    report: Callable[[Path, int, int], None] = lambda log, offset, code: None
    """Shows what ranks have written to the log after an offset in bytes, given their exit code."""
    check: Callable[[], None] = lambda: None
    """Raises StokerError where the run directory is no longer the one that was opened."""


def launch(plan: Launch, endpoint: Endpoint, nodes: Nodes) -> int:
    """Take part in a run until it is finished or this node has to leave; returns the exit code."""
    key = shared_key(plan.run_path / KEY_FILE)
    with closing(Rendezvous(endpoint, nodes, key, plan.stop)) as rendezvous:
        return run_rounds(plan, rendezvous)


def run_rounds(plan: Launch, rendezvous: Rendezvous) -> int:
    """Run rounds until the run ends, this node leaves, or ranks fail twice with no step between."""
    log = plan.run_path / f"launcher-{rendezvous.local_address}.log"
    failed_at_step = -1
    while True:
        round = rendezvous.next_round()
        offset = log.stat().st_size if log.exists() else 0
        code = INTERRUPTED
        plan.check()
        try:
            code = run_round(plan, rendezvous, round, log)
        finally:
            plan.check()
            plan.report(log, offset, code)
        rendezvous.leave(round, finished=code in (FINISHED, BAD_REQUEST))
        if code == FAILED and (steps := plan.progress()) > failed_at_step:
            failed_at_step = steps
        elif code != STEPPED_ASIDE:
            return code


def run_round(plan: Launch, rendezvous: Rendezvous, round: Round, log: Path) -> int:
    """Run this node's ranks through one round; returns the node's exit code for it."""
    running: Processes = []
    try:
        with open_at_end(log) as errors:
            for local in range(plan.ranks):
                variables = {**environment(plan, rendezvous, round, local), **plan.extra}
                sockets = [round.listener.fileno()] if round.listener and local == 0 else []
                if sockets:
                    variables[LISTENER] = str(sockets[0])
                running.append(start(plan.arguments, variables, errors, sockets))
        if round.listener:
            round.listener.close()
        return node_exit_code(follow(plan, rendezvous, round, running), plan.stop())
    except StokerError:
        end(running, signal.SIGUSR1, 2 * NOTICE_S)
        raise
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise Interrupted(
            "this node cannot open more files; other programs may hold connections to "
            f"{rendezvous.endpoint}: raise 'ulimit -n', or choose a port that only your nodes reach"
        ) from error
    finally:
        signal_all(running, signal.SIGKILL)


def environment(
    plan: Launch, rendezvous: Rendezvous, round: Round, local_rank: int
) -> dict[str, str]:
    """The environment of one rank of the round."""
    rank, world = round.node * plan.ranks + local_rank, round.nodes * plan.ranks
    interface = interface_of(rendezvous.local_address)
    return {
        **rank_variables(rank, world, local_rank, plan.ranks),
        ELASTIC: "1",
        ROUND_KEY: round.messages.key_for("addresses of ranks").hex(),
        "MASTER_ADDR": round.address,
        "MASTER_PORT": str(round.port),
        "GLOO_SOCKET_IFNAME": interface,
        "NCCL_SOCKET_IFNAME": os.environ.get("NCCL_SOCKET_IFNAME", interface),
    }


def follow(plan: Launch, rendezvous: Rendezvous, round: Round, running: Processes) -> list[int]:
    """Wait for this node's ranks, or end them if the round has to end; returns their exit codes."""

    def stay() -> None:
        """Poll while ranks save: other nodes would take this one for lost, and end theirs."""
        with suppress(StokerError):
            rendezvous.changes(round)

    while all(rank.poll() in (None, FINISHED) for rank in running):
        if all(rank.poll() == FINISHED for rank in running):
            return [FINISHED] * len(running)
        if plan.stop():
            return end(running, signal.SIGUSR1, SAVE_S, stay)
        changes = rendezvous.changes(round)
        if changes.lost:
            # The lost node may drop all packets: ranks would wait for it until gloo's timeout.
            return end(running, signal.SIGTERM, NOTICE_S)
        if changes.waiting or changes.expelled:
            return end(running, signal.SIGTERM, SAVE_S, stay)
        time.sleep(_POLL_S)
    stopped = any(rank.poll() in (INTERRUPTED, STEPPED_ASIDE) for rank in running)
    wait(running, SAVE_S if stopped else NOTICE_S, stay)
    return end(running, signal.SIGTERM, NOTICE_S)


def end(
    running: Processes,
    number: signal.Signals,
    patience_s: float,
    keep_up: Callable[[], None] = lambda: None,
) -> list[int]:
    """Signal the ranks, and kill those that do not end in time; returns their exit codes. A rank
    that died of these signals had not begun to train, or hung with a lost peer: STEPPED_ASIDE."""
    codes_before = [rank.poll() for rank in running]
    signal_all(running, number)
    wait(running, patience_s, keep_up)
    signal_all(running, signal.SIGKILL)
    codes = [rank.wait() for rank in running]
    sent = (-number, -signal.SIGKILL)
    return [
        STEPPED_ASIDE if before is None and code in sent else code
        for before, code in zip(codes_before, codes, strict=True)
    ]


def wait(running: Processes, patience_s: float, keep_up: Callable[[], None] = lambda: None) -> None:
    """Wait until all ranks have ended, at most so many seconds; `keep_up` is called often."""
    give_up = time.monotonic() + patience_s
    while any(rank.poll() is None for rank in running) and time.monotonic() < give_up:
        keep_up()
        time.sleep(_POLL_S / 4)


def node_exit_code(codes: Sequence[int], stopped: bool) -> int:
    """The exit code of this node for a round, from the exit codes of its ranks."""
    if all(code == FINISHED for code in codes):
        return FINISHED
    if BAD_REQUEST in codes:
        return BAD_REQUEST
    if not set(codes) <= {FINISHED, INTERRUPTED, STEPPED_ASIDE}:
        return FAILED
    return INTERRUPTED if stopped or INTERRUPTED in codes else STEPPED_ASIDE
