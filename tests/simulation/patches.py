"""Puts simulated time, threads, disks and links into the product's modules, and takes them out.

What is replaced is what a module takes from Python or the system: its globals `time`, `threading`,
`os`, `socket` and the like. The code of the product and of torch's rendezvous runs as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch.distributed
from torch.distributed.elastic.rendezvous import api, utils
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

from simulation import disk, links, local_disk
from simulation.standins import (
    THREADING,
    TIME,
    Calendar,
    Chance,
    Event,
    Lock,
    Signatures,
    States,
    Thread,
)
from simulation.world import current
from stoker.fleet import addresses, elastic, launcher, rendezvous, signed_store
from stoker.fleet.grid import worker
from stoker.locks import files, lease
from stoker.stores import commit_folder
from stoker.stores import lease as store_lease
from stoker.survive import manifest
from stoker.train.attempt import launch

ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "eth0"}
_FLEET: list[Any] = []
"""The schedule that runs."""


def start_time(pid: int) -> str:
    """When a process of this machine began; empty where there is none."""
    return "began" if pid in current().machine.processes else ""


class SimulatedRound(rendezvous.Round):
    """A round whose lock is a simulated one, and whose numbers are checked."""

    def __init__(self, *values: Any) -> None:
        super().__init__(*values)
        object.__setattr__(self, "writing", Lock())
        _FLEET[-1].round_began(self.messages._store, self.node, self.nodes)


def start_rank(arguments: Any, variables: Any, errors: Any, sockets: Any = ()) -> Any:
    return _FLEET[-1].ranks.start(variables)


def own_pid() -> int:
    return current().number


def nothing(*_: Any, **__: Any) -> None: ...


REPLACED: list[tuple[Any, dict[str, Any]]] = [
    (
        files,
        {
            "os": disk.DiskOs,
            "sync": disk.sync,
            "open_plain": disk.open_plain,
            "secrets": Chance,
        },
    ),
    (lease, {"start_time": start_time}),
    (worker, {"time": TIME, "write_bytes": disk.write_bytes}),
    (
        rendezvous,
        {
            "time": TIME,
            "threading": THREADING,
            "socket": links.Sockets,
            "resident_memory": lambda: 0,
            "Round": SimulatedRound,
        },
    ),
    (
        signed_store,
        {
            "time": TIME,
            "threading": THREADING,
            "os": disk.DiskOs,
            "secrets": Chance,
            "hmac": Signatures,
            "read_plain": local_disk.read_plain,
        },
    ),
    (addresses, {"socket": links.Sockets, "os": SimpleNamespace(environ=ENVIRONMENT)}),
    (
        launcher,
        {
            "os": SimpleNamespace(environ=ENVIRONMENT, getpid=own_pid),
            "usable_cores": lambda: 1,
        },
    ),
    (
        elastic,
        {
            "time": TIME,
            "os": SimpleNamespace(environ=ENVIRONMENT),
            "start": start_rank,
            "open_at_end": lambda log: nullcontext(),
        },
    ),
    (launch, {"say": nothing}),
    (store_lease, {"threading": THREADING, "secrets": Chance}),
    (
        commit_folder,
        {"temporary": local_disk.temporary, "remove": local_disk.remove, "sync": local_disk.sync},
    ),
    (manifest, {"read_plain": local_disk.read_plain}),
    (torch.distributed, {"TCPStore": links.SimulatedStore}),
    (api, {"get_free_port": lambda: 1}),
    (utils, {"time": TIME, "random": Chance, "Event": Event, "Thread": Thread}),
    (
        dynamic,
        {
            "time": TIME,
            "datetime": Calendar,
            "pickle": States,
            "threading": THREADING,
            "os": SimpleNamespace(getpid=own_pid, getenv=lambda name, default: "1"),
            "dist": SimpleNamespace(PrefixStore=links.SimulatedPrefixStore),
            # They record nothing here, and look at the whole stack for it.
            "get_method_name": nothing,
            "construct_and_record_rdzv_event": nothing,
        },
    ),
]
"""What stands in for which global of which module."""


@contextmanager
def simulated() -> Iterator[None]:
    """A block in which the product runs in simulated schedules only."""
    with ExitStack() as stack:
        for module, values in REPLACED:
            stack.enter_context(mock.patch.multiple(module, **values))
        yield


@contextmanager
def polls(seconds: float, schedule: Any) -> Iterator[None]:
    """A block in which launchers look at their ranks so often."""
    before = elastic._POLL_S, rendezvous._POLL_S
    elastic._POLL_S, rendezvous._POLL_S = seconds, 2 * seconds
    dynamic.DynamicRendezvousHandler._node_desc_generator._lock = Lock()
    dynamic.DynamicRendezvousHandler._node_desc_generator._local_id = 0
    _FLEET.append(schedule)
    try:
        yield
    finally:
        _FLEET.pop()
        elastic._POLL_S, rendezvous._POLL_S = before
