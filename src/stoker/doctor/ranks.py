"""The ranks of `stoker doctor`: started as training's are, they measure the network and end.

Invariants: ranks run the command that the user typed, meet where training meets, behind the same
key, and listen nowhere else. What they found comes back as JSON through a private folder, on every
host. No wait is without an end, and no rank is left behind.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from stoker.commit import write_json
from stoker.errors import (
    BAD_REQUEST,
    FAILED,
    FINISHED,
    STEPPED_ASIDE,
    BadRequest,
    Interrupted,
    StokerError,
)
from stoker.fleet.addresses import Endpoint, Nodes, interface_of, listening, meeting_point
from stoker.fleet.launcher import launch, log_lines_since
from stoker.host.signals import STOP_SIGNALS, unblock_stop_signals
from stoker.survive.stopping import StopRequest
from stoker.text import say

if TYPE_CHECKING:
    from stoker.measure.trials.link import LinkReport

ANSWER = "STOKER_DOCTOR"
"""The private folder of a launcher, in which its ranks leave what they found."""
GRADIENT = "STOKER_GRADIENT_BYTES"
"""Bytes of the gradient, where the launcher knows: then no rank has to build the model."""
HOST = "STOKER_HOST"
"""What a host is called in the result."""
FOUND, LOG, NCCL_LOG = "network.json", "ranks.log", "nccl"
SHARED = Path("runs") / ".doctor"
"""Where hosts share their key: as a run's, on the disk that they share, or copied."""
BUDGET_S = 20.0
MEET_S, STUCK_S = 120.0, 60.0
"""How long ranks may take to begin and meet, and one part of the measurement, before the network
counts as not answering."""
AGAIN = "start the same command on every host again"
STOPPED = "stopped while it measured; nothing was changed: the same command starts again"


def network_across(
    parsed: argparse.Namespace, words: Sequence[str], gradient_bytes: int = 0
) -> LinkReport:
    """Start `stoker doctor WORDS` as ranks, here or on several hosts, and collect what they found;
    the same on every host."""
    meeting = check(parsed)
    folder = Path(tempfile.mkdtemp(prefix="stoker-doctor-"))
    told = {
        ANSWER: str(folder),
        HOST: socket.gethostname(),
        # Read afterwards, where NCCL is what carries the gradient.
        "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "INFO"),
        "NCCL_DEBUG_FILE": str(folder / f"{NCCL_LOG}.%h.%p"),
    }
    if gradient_bytes > 0:
        told[GRADIENT] = str(gradient_bytes)
    stop = StopRequest()
    stop.listen()
    try:
        code: int | None
        if meeting:
            code = across_hosts(parsed, words, folder, told, stop, *meeting)
        else:
            code = across_ranks(parsed.ranks, words, folder, told)
        return collected(folder, code, stopped=bool(stop) or code is None)
    finally:
        stop.release()
        shutil.rmtree(folder, ignore_errors=True)


def check(parsed: argparse.Namespace) -> tuple[Endpoint, Nodes] | None:
    """Refuse what cannot be measured; where how many hosts meet. Best called before anything
    imports torch, which reads once how much it may say."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    nodes = None if parsed.nodes is None else str(parsed.nodes)
    meeting = meeting_point(nodes, parsed.rendezvous)
    if parsed.ranks < 1:
        raise BadRequest(f"--ranks must be at least 1, not {parsed.ranks}")
    if meeting is None and parsed.address:
        raise BadRequest("--address goes with --nodes and --rendezvous: one machine needs none")
    if parsed.ranks * (meeting[1].most if meeting else 1) < 2:
        raise BadRequest(
            "one rank has nobody to exchange with: --ranks 2, or --nodes 2 --rendezvous HOST:PORT"
        )
    if parsed.address:
        door = listening(parsed.address, 0)
        if door is None:
            raise BadRequest(f"--address {parsed.address} is no address of this machine")
        door.close()
        interface_of(parsed.address)
    return meeting


def across_ranks(
    ranks: int, words: Sequence[str], folder: Path, told: Mapping[str, str]
) -> int | None:
    """Ranks of this machine, over loopback: what they came to; None if they were stopped."""
    ended = launch(ranks, ["doctor", *words], folder / LOG, told)
    if ended.signalled:
        return None
    return next((code for code in (BAD_REQUEST, FAILED) if code in ended.codes), max(ended.codes))


def across_hosts(
    parsed: argparse.Namespace,
    words: Sequence[str],
    folder: Path,
    told: Mapping[str, str],
    stop: StopRequest,
    place: Endpoint,
    nodes: Nodes,
) -> int:
    """One round with the ranks of other hosts, met as nodes of a run meet."""
    from stoker.fleet.elastic import KEY_FILE, Launch, take_part
    from stoker.fleet.rendezvous import Rendezvous
    from stoker.fleet.signed_store import shared_key

    say(f"waiting for hosts at {place} ({nodes})")
    try:
        key = shared_key(SHARED / KEY_FILE)
    except OSError as error:
        raise BadRequest(
            f"cannot keep the hosts' key in {SHARED.resolve()} ({error.strerror}): start in a "
            "folder that you can write to, the same on every host"
        ) from error
    try:
        with closing(
            Rendezvous(place, nodes, key, lambda: bool(stop), parsed.address)
        ) as rendezvous:
            round = rendezvous.next_round()
            name = f"{told[HOST]} {rendezvous.local_address}"
            plan = Launch(
                ranks=parsed.ranks,
                arguments=["doctor", *words],
                run_path=SHARED,
                extra={**told, HOST: name},
                stop=lambda: bool(stop),
                progress=lambda: 0,
                tell=lambda log, place, code: None,
            )
            code = take_part(plan, rendezvous, round, folder / LOG)
            rendezvous.part(round, finished=code == FINISHED)
            return code
    except Interrupted as error:
        # A measurement is not resumed: what is no stop wish has failed.
        if stop:
            raise Interrupted(STOPPED) from error
        raise StokerError(lost(folder) or without_resuming(error)) from error
    except BadRequest:
        raise
    except StokerError as error:
        raise StokerError(
            f"the host at {place} has another key, so nothing it sent was read: all hosts share "
            f"{SHARED / KEY_FILE}; copy it from there, or start where it is shared"
        ) from error


def without_resuming(error: Interrupted) -> str:
    """What is wrong with a meeting, without what is said of runs."""
    wrong, colon, _ = str(error).partition(": start the same command")
    return f"{wrong}: {AGAIN}" if colon else wrong


def lost(folder: Path) -> str:
    """What the ranks of this host said for the user, in one line; empty if nothing."""
    log = folder / LOG
    _, ours = log_lines_since(log, 0) if log.exists() else ([], [])
    return "; ".join(line.removeprefix("stoker: ") for line in ours)


def collected(folder: Path, code: int | None, *, stopped: bool) -> LinkReport:
    """What the ranks found, or why they did not."""
    from stoker.measure.trials.link import LinkReport

    if code == FINISHED:
        return LinkReport.from_data(json.loads((folder / FOUND).read_text()))
    if stopped:
        raise Interrupted(STOPPED)
    words = lost(folder)
    if code == BAD_REQUEST and words:
        raise BadRequest(words)
    if not words and code != STEPPED_ASIDE:
        said, _ = log_lines_since(folder / LOG, 0)
        print(*said[-20:], sep="\n", file=sys.stderr)
        words = f"a rank failed while the network was measured (exit code {code})"
    raise StokerError(words or f"a host came or went while the network was measured: {AGAIN}")


def rank_part() -> int:
    """What each rank runs: meet, measure, leave the result to the launcher."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # nothing is to be saved
    unblock_stop_signals()
    folder = Path(os.environ[ANSWER])
    gradient = int(os.environ.get(GRADIENT, "0"))
    stage = Stage()
    from stoker.measure.trials.link import measure_links
    from stoker.train.attempt.lost_peers import is_broken_collective
    from stoker.train.process_group import Ranks

    try:
        ranks = Ranks.join()
        found = measure_links(
            ranks.rank,
            ranks.world,
            os.environ[HOST],
            gradient,
            BUDGET_S,
            at=stage.begin,
            nccl=lambda: nccl_said(folder),
        )
        if ranks.local_rank == 0:
            write_json(folder / FOUND, found.as_data())
        ranks.meet()
        ranks.leave()
    except RuntimeError as error:
        if not is_broken_collective(error):
            raise
        raise StokerError(f"lost a rank while measuring {stage.words}: {AGAIN}") from error
    return FINISHED


def nccl_said(folder: Path) -> str:
    """What NCCL wrote into its own files of this host. Never run: no GPU was at hand."""
    from stoker.host.interfaces import nccl_words

    files = sorted(folder.glob(f"{NCCL_LOG}.*"))
    return nccl_words("\n".join(file.read_text(errors="replace") for file in files))


class Stage:
    """What is being measured, and an end to it: a network that swallows packets would hold a
    collective for very long."""

    def __init__(self) -> None:
        self.begin("where ranks meet", MEET_S)
        threading.Thread(target=self._watch, daemon=True, name="stoker-stage").start()

    def begin(self, words: str, patience_s: float = STUCK_S) -> None:
        self.words, self.ends, self.patience_s = words, time.monotonic() + patience_s, patience_s

    def _watch(self) -> None:
        while time.monotonic() < self.ends:
            time.sleep(0.5)
        print(
            f"stoker: no answer for {self.patience_s:.0f} s while measuring {self.words}: look at "
            f"the network between the hosts, then {AGAIN}",
            file=sys.stderr,
            flush=True,
        )
        os._exit(FAILED)
