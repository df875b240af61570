"""Starts training processes that have torch imported already, and lets them die where told.

Reads one JSON command a line: {"argv": [...], "ranks": N, "kill": {...} or null, "linger": bool}.
Forks the ranks, answers {"pids": [...]}, then, when all are gone, {"codes": [...]}.

A kill is {"rank": r, "span": "backward", "after": n}: SIGKILL, from inside, when the rank enters
that span for the n-th time; or {"rank": r, "sync": n}: at the n-th file that a save has written.
The process kills itself with the real signal: nothing is cleaned up. Unless told to linger, the
other ranks are killed with it, as when a machine is lost.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

import torch
import torch.distributed  # noqa: F401
from torch.nn.parallel import DistributedDataParallel  # noqa: F401

import stoker.survive.checkpoint
import stoker.train.session
from stoker.cli import main
from stoker.measure.spans import Spans


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kill: dict[str, Any]) -> None:
    """Put the kill into this process."""
    left = [kill.get("after", kill.get("sync", 0))]

    def count_down() -> None:
        left[0] -= 1
        if left[0] <= 0:
            die()

    if "span" in kill:
        enter = Spans._enter

        def entering(spans: Spans, name: str) -> None:
            enter(spans, name)
            if name == kill["span"]:
                count_down()

        Spans._enter = entering  # type: ignore[method-assign]
    if "sync" in kill:
        sync = stoker.survive.checkpoint.sync

        def synced(path: Any) -> None:
            sync(path)
            count_down()

        stoker.survive.checkpoint.sync = synced


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_rank(command: dict[str, Any], rank: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    # One core a rank: threads that wait for each other on a busy machine are slow, not exact.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    ranks = str(command["ranks"])
    if command["ranks"] > 1:
        os.environ |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if command.get("kill") and command["kill"]["rank"] == rank:
        arm(command["kill"])
    code = 1
    try:
        code = main(command["argv"])
    finally:
        sys.stdout.flush()
        os._exit(code)


def serve() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        port = free_port()
        pids = [start_rank(command, rank, port) for rank in range(command["ranks"])]
        print(json.dumps({"pids": pids}), flush=True)
        codes: dict[int, int] = {}
        while len(codes) < len(pids):
            pid, status = os.wait()
            codes[pid] = os.waitstatus_to_exitcode(status)
            if codes[pid] == -signal.SIGKILL and not command.get("linger"):
                for other in set(pids) - set(codes):
                    os.kill(other, signal.SIGKILL)
        print(json.dumps({"codes": [codes[pid] for pid in pids]}), flush=True)


if __name__ == "__main__":
    serve()
