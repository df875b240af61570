"""Starts training processes that have torch imported already, and lets them die where told.

Reads one JSON command a line: {"argv": [...], "ranks": N, "faults": [...], "linger": bool}. Forks
the ranks, answers {"pids": [...]}, then, when all are gone, {"codes": [...], "ended": [...]}.

"spaces" names a network namespace for each rank, which is then a machine of its own; rank 0 is met
at "address". "cores" is how many cores a rank has, "threads" how many of its threads compute.

Faults are the rows of stoker/faults.py. A process that is to be killed kills itself with the real
signal: nothing is cleaned up. Unless told to linger, the other ranks are killed with it, as when a
machine is lost.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from typing import Any

from stoker.host.threads import limit_spinning

limit_spinning()
import torch  # noqa: E402

# Imported by torch itself where kernels are to be deterministic: two seconds of each rank.
import torch._inductor  # noqa: E402
import torch.distributed  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402, F401

import stoker.train.attempt.session  # noqa: E402, F401
from ports import free_port  # noqa: E402
from stoker.cli import main  # noqa: E402
from stoker.faults import VARIABLE  # noqa: E402

with suppress(ImportError):  # for its optimisers: seconds in each process otherwise
    import timm.optim  # noqa: F401

CLONE_NEWNET = 0x40000000
FIRST_CORE = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""Where tests run side by side, each begins with a core of its own."""


def enter(space: str) -> None:
    """Move this thread, the only one, to another network."""
    handle = os.open(f"/run/netns/{space}", os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(handle, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {space}")
    os.close(handle)


def start_rank(command: dict[str, Any], rank: int, port: int, leader: int) -> int:
    """One rank, in the process group of rank 0."""
    pid = os.fork()
    if pid:
        os.setpgid(pid, leader or pid)
        return pid
    os.setpgid(0, leader)
    # One core a rank: threads that wait for each other on a busy machine are slow, not exact.
    cores, each = sorted(os.sched_getaffinity(0)), command.get("cores", 1)
    first = rank * each + FIRST_CORE
    os.sched_setaffinity(0, {cores[(first + more) % len(cores)] for more in range(each)})
    if command.get("threads"):
        # As where a GPU computes: threads do not wait for each other, whatever else runs.
        torch.set_num_threads(command["threads"])
        torch.set_num_threads = lambda count: None
    spaces, ranks = command.get("spaces", []), str(command["ranks"])
    if command["ranks"] > 1:
        local = ("1", "0") if spaces else (ranks, str(rank))
        os.environ |= {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": local[0]}
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": local[1]}
        os.environ |= {"MASTER_ADDR": command.get("address", "127.0.0.1"), "MASTER_PORT": str(port)}
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0" if spaces else "lo"
    if spaces:
        enter(spaces[rank])
    log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= {VARIABLE: json.dumps(command["faults"]), **command["variables"]}
    code = 1
    try:
        code = main(command["argv"])
    except BaseException:  # os._exit would hide it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def serve() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        port = free_port()
        pids: list[int] = []
        for rank in range(command["ranks"]):
            pids.append(start_rank(command, rank, port, pids[0] if pids else 0))
        print(json.dumps({"pids": pids}), flush=True)
        codes: dict[int, int] = {}
        ended: dict[int, float] = {}
        while len(codes) < len(pids):
            pid, status = os.wait()
            codes[pid], ended[pid] = os.waitstatus_to_exitcode(status), time.time()
            if codes[pid] == -signal.SIGKILL and not command.get("linger"):
                for other in set(pids) - set(codes):
                    os.kill(other, signal.SIGKILL)
        answer = {"codes": [codes[pid] for pid in pids], "ended": [ended[pid] for pid in pids]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
