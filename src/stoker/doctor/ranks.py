"""The ranks of `stoker doctor`: started as training's are, they measure the links between them.

Invariants: ranks run the command that the user typed. They meet as the ranks of a run do, with a
key, and listen on no other address. Their result comes back as JSON through a private folder, on
every host. No wait is endless, and no rank is left behind.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
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
from stoker.fleet.addresses import Endpoint, Nodes, interface_of, listening_socket, meeting_point
from stoker.fleet.elastic import KEY_FILE, Launch, run_round
from stoker.fleet.launcher import launch, log_lines_since, private_folder
from stoker.fleet.rendezvous import RESTART, ForeignContent, Rendezvous
from stoker.fleet.signed_store import shared_key
from stoker.host.signals import STOP_SIGNALS, unblock_stop_signals
from stoker.survive.stopping import UNCHANGED, listening
from stoker.text import say

if TYPE_CHECKING:
    from stoker.measure.trials.link import LinkReport

RESULT_FOLDER = "STOKER_DOCTOR"
"""Variable with the private folder of a launcher, in which its ranks leave their result."""
GRADIENT_BYTES = "STOKER_GRADIENT_BYTES"
"""Variable with the bytes of the gradient, so that no rank has to build the model; 0: unknown."""
HOST_NAME = "STOKER_HOST"
"""Variable with the name of a host in the result."""
RESULT, LOG, NCCL_LOG = "network.json", "ranks.log", "nccl"
SHARED = Path("runs") / ".doctor"
"""The folder with the key that all hosts need: on a disk that they share, or copied."""
BUDGET_S = 20.0
MEET_S, STUCK_S = 120.0, 60.0
"""How long ranks may take to start and meet, and how long one stage of the measurement may take."""
STOPPED = f"measuring stopped; {UNCHANGED}"


@dataclass(frozen=True)
class RankOptions:
    """The ranks between which links are measured, as the flags of `stoker doctor` name them."""

    ranks: int = 1
    """Ranks on this host."""
    nodes: str | None = None
    rendezvous: str | None = None
    address: str | None = None
    arguments: Sequence[str] = ()
    """The words after `stoker doctor`: every rank runs the same command."""

    @property
    def several(self) -> bool:
        """Whether there is more to measure than one rank."""
        return self.ranks != 1 or any((self.nodes, self.rendezvous, self.address))

    def check(self) -> tuple[Endpoint, Nodes] | None:
        """Where hosts meet, and how many; None for ranks of this host alone. Raises BadRequest for
        what cannot be measured. Called before torch is imported, which reads its log level once."""
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        meeting = meeting_point(self.nodes, self.rendezvous)
        if self.ranks < 1:
            raise BadRequest(f"--ranks must be at least 1, not {self.ranks}")
        if meeting is None and self.address:
            raise BadRequest(
                "--address goes with --nodes and --rendezvous: set them, or leave it out"
            )
        if self.ranks * (meeting[1].most if meeting else 1) < 2:
            raise BadRequest(
                "one rank has no other to exchange gradients with: set --ranks 2, or "
                "--nodes 2 --rendezvous HOST:PORT"
            )
        if self.address:
            listener = listening_socket(self.address, 0)
            if listener is None:
                raise BadRequest(f"--address {self.address} is not this machine's: see 'ip addr'")
            listener.close()
            interface_of(self.address)
        return meeting


def measure_between_ranks(options: RankOptions, gradient_bytes: int = 0) -> LinkReport:
    """Start the ranks; returns what they measured, on every host the same. Raises StokerError."""
    meeting = options.check()
    folder = private_folder("stoker-doctor-")
    variables = {
        RESULT_FOLDER: str(folder),
        GRADIENT_BYTES: str(gradient_bytes),
        HOST_NAME: socket.gethostname(),
        # The log is read afterwards, where gradients go through NCCL.
        "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "INFO"),
        "NCCL_DEBUG_FILE": str(folder / f"{NCCL_LOG}.%h.%p"),
    }
    try:
        with listening() as stop:
            if meeting is None:
                code = run_on_this_host(options, variables)
            else:
                code = run_with_other_hosts(options, variables, lambda: bool(stop), *meeting)
            return read_result(folder, code, stopped=bool(stop) or code is None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_on_this_host(options: RankOptions, variables: Mapping[str, str]) -> int | None:
    """Run ranks over loopback; returns their exit code, None if they were stopped."""
    log = Path(variables[RESULT_FOLDER]) / LOG
    result = launch(options.ranks, ["doctor", *options.arguments], log, variables)
    if result.stop_signal:
        return None
    return next((code for code in (BAD_REQUEST, FAILED) if code in result.codes), max(result.codes))


def run_with_other_hosts(
    options: RankOptions,
    variables: Mapping[str, str],
    stop: Callable[[], bool],
    endpoint: Endpoint,
    nodes: Nodes,
) -> int:
    """Run one round with other hosts; returns the exit code. Raises Interrupted or StokerError."""
    say(f"waiting for hosts at {endpoint} ({nodes})")
    key, folder = key_of_hosts(SHARED / KEY_FILE), Path(variables[RESULT_FOLDER])
    try:
        with closing(Rendezvous(endpoint, nodes, key, stop, options.address)) as rendezvous:
            round = rendezvous.next_round()
            extra = {**variables, HOST_NAME: f"{variables[HOST_NAME]} {rendezvous.local_address}"}
            plan = Launch(options.ranks, ["doctor", *options.arguments], SHARED, extra, stop)
            code = run_round(plan, rendezvous, round, folder / LOG)
            rendezvous.leave(round, finished=code == FINISHED)
            return code
    except ForeignContent as error:
        raise StokerError(
            f"the host at {endpoint} has another key, so nothing it sent was read: copy its "
            f"{SHARED / KEY_FILE} to this host, or start in a folder that all hosts share"
        ) from error
    except Interrupted as error:
        # A measurement is not resumed: without a stop request it has failed.
        if stop():
            raise Interrupted(STOPPED) from error
        raise StokerError(rank_messages(folder) or str(error)) from error


def key_of_hosts(path: Path) -> bytes:
    """The key that all hosts share; raises BadRequest where it cannot be written."""
    try:
        return shared_key(path)
    except OSError as error:
        raise BadRequest(
            f"cannot write the hosts' key to {path.resolve()} ({error.strerror}): start in a "
            "folder that you can write to, the same on every host"
        ) from error


def rank_messages(folder: Path) -> str:
    """The messages of this host's ranks for the user, in one line; empty if there are none."""
    log = folder / LOG
    _, messages = log_lines_since(log, 0) if log.exists() else ([], [])
    return "; ".join(line.removeprefix("stoker: ") for line in messages)


def read_result(folder: Path, code: int | None, *, stopped: bool) -> LinkReport:
    """What the ranks measured. Raises Interrupted if stopped, else StokerError with their words."""
    from stoker.measure.trials.link import LinkReport

    if code == FINISHED:
        return LinkReport.from_data(json.loads((folder / RESULT).read_text()))
    if stopped:
        raise Interrupted(STOPPED)
    message = rank_messages(folder)
    if code == BAD_REQUEST and message:
        raise BadRequest(message)
    if not message and code != STEPPED_ASIDE:
        lines, _ = log_lines_since(folder / LOG, 0)
        say(*lines[-20:], stream=sys.stderr, wrap=False)
        message = f"a rank failed while the links were measured (exit code {code}): see above"
    raise StokerError(message or f"a host joined or left while the links were measured: {RESTART}")


def run_rank() -> int:
    """What each rank runs: meet, measure, leave the result. Raises StokerError for a lost rank."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)  # nothing has to be saved
    unblock_stop_signals()
    folder = Path(os.environ[RESULT_FOLDER])
    stage = Stage()
    from stoker.host.interfaces import nccl_transport
    from stoker.measure.trials.link import measure_links
    from stoker.train.attempt.lost_peers import is_broken_collective
    from stoker.train.process_group import Ranks

    def transport() -> str:
        files = sorted(folder.glob(f"{NCCL_LOG}.*"))
        return nccl_transport("\n".join(file.read_text(errors="replace") for file in files))

    try:
        ranks = Ranks.join()
        host, gradient_bytes = os.environ[HOST_NAME], int(os.environ[GRADIENT_BYTES])
        report = measure_links(host, gradient_bytes, BUDGET_S, stage.begin, transport)
        if ranks.local_rank == 0:
            write_json(folder / RESULT, report.as_data())
        ranks.meet()
        ranks.leave()
    except RuntimeError as error:
        if not is_broken_collective(error):
            raise
        raise StokerError(f"lost a rank while measuring {stage.name}: {RESTART}") from error
    return FINISHED


class Stage:
    """What is being measured, with a time limit that ends the process: on a link that drops all
    packets, a collective would wait much longer."""

    def __init__(self) -> None:
        self.begin("the meeting of all ranks", MEET_S)
        threading.Thread(target=self._watch, daemon=True, name="stoker-stage").start()

    def begin(self, name: str, limit_s: float = STUCK_S) -> None:
        self.name, self.limit_s, self.ends_at = name, limit_s, time.monotonic() + limit_s

    def _watch(self) -> None:
        while time.monotonic() < self.ends_at:
            time.sleep(0.5)
        say(
            f"stoker: no answer for {self.limit_s:.0f} s while measuring {self.name}: check the "
            f"link between the hosts, then {RESTART}",
            stream=sys.stderr,
        )
        os._exit(FAILED)
