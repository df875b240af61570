"""Bugs put in by hand: each undoes a line of the product, and some were bugs of it once.

A simulation that finds none of them shows nothing: a test runs schedules until each is found.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any
from unittest import mock

from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from simulation import fleet
from simulation.disk import DiskPath
from simulation.planted_store import STORE, Bug, replaced
from simulation.standins import Chance
from stoker.errors import STEPPED_ASIDE
from stoker.fleet import elastic, launcher, signed_store
from stoker.fleet.grid import worker
from stoker.fleet.grid.worker import Worker
from stoker.fleet.rendezvous import NodeChanges, Rendezvous, Round
from stoker.fleet.signed_store import RoundMessages, write_new
from stoker.locks import lease
from stoker.locks.files import DiskFiles
from stoker.locks.lease import EXPIRES_S, Lease, Leases

# Workers on leases.


def any_lease(self: Leases, held: Lease) -> bool:
    """A lease without a fence: a later one is not looked for."""
    return not held.lost


def beats_do_not_count(self: Leases, cell: str, number: int) -> bool:
    since = self._watched.setdefault(cell, (number, 0, self.clock.now()))
    return self.clock.now() - since[2] > EXPIRES_S


def by_name(self: DiskFiles, name: str, data: bytes, *, durable: bool = False) -> bool:
    """A file gets its name by looking first, then renaming."""
    if (self.root / name).exists():
        return False
    self.replace(name, data)
    return True


class ForgetfulWorker(Worker):
    """Drops a cell that has failed without the cells that need it."""

    def run(self) -> int:
        left = list(self.plan.cells)
        while left:
            for name in left:
                if self.stop():
                    return 75
                self._try(self.plan.cells[name])
            blocked = self.plan.blocked_by([n for n in left if self.grid.failures(n)])
            left = [n for n in left if not self.grid.is_done(n) and n not in blocked]
            left = [n for n in left if not self.grid.failures(n)]
            self.leases.clock.sleep(worker.WAIT_S)
        return 0


def by_its_result(self: Worker, cell: Any) -> bool:
    """A cell that has failed too often runs again."""
    return self.grid.is_done(cell.id)


# Nodes.

write_state = C10dRendezvousBackend.set_state


def no_node_is_lost(self: Round) -> int:
    """A dropped heartbeat check."""
    self.set_pulse(self.written[0] + 1)
    return 0


look = Rendezvous._changes


def all_who_wait(self: Rendezvous, round: Round) -> NodeChanges:
    """A node that waits ends a full round."""
    return replace(look(self, round), waiting=self._inner.num_nodes_waiting())


def unaware(self: Rendezvous, round: Round) -> NodeChanges:
    """A node that the others have removed does not notice."""
    return replace(look(self, round), expelled=False)


def leave_alone(self: Rendezvous, round: Round, *, finished: bool) -> None:
    """A node that steps aside does not say so, and is taken for lost."""
    if finished:
        leave(self, round, finished=finished)


leave = Rendezvous.leave


def any_size(self: RoundMessages, listens_at: str | None, announce: Callable[[str], None]) -> str:
    """Nodes that count different numbers of nodes begin all the same."""
    number = Chance.token_hex(16)
    self.put(f"number{self._node}", number)
    if listens_at is not None:
        numbers = [self.get(f"number{node}") for node in range(self._nodes)]
        announce(number)
        self.put("door", json.dumps([listens_at, *numbers]))
    address, *numbers = json.loads(text := self.get("door"))
    self._key, self.round = self.key_for(text), str(numbers[0])
    return str(address)


def blindly(self: C10dRendezvousBackend, state: bytes, token: Any = None) -> Any:
    """The state is written over whatever another node wrote."""
    _, newest = self.get_state() or (b"", None)
    return write_state(self, state, newest)


def without_a_kill(running: Any, number: signal.Signals) -> None:
    if number != signal.SIGKILL:
        launcher.signal_all(running, number)


def without_patience(
    running: Any, number: signal.Signals, patience_s: float, keep_up: Any = None
) -> list[int]:
    """Ranks that have not ended are left."""
    without_a_kill(running, number)
    return [STEPPED_ASIDE if (code := rank.poll()) is None else code for rank in running]


def ranks_are_left() -> AbstractContextManager[Any]:
    return mock.patch.multiple(elastic, end=without_patience, signal_all=without_a_kill)


def half_a_key(path: DiskPath) -> None:
    """The key's file is there before the key is."""
    with suppress(FileExistsError):
        write_new(path, Chance.token_bytes(32))  # type: ignore[arg-type]


class DeafLaunch(elastic.Launch):
    """Does not look for a stop signal while its ranks run."""

    def __init__(self, *values: Any, stop: Any, **more: Any) -> None:
        super().__init__(*values, stop=lambda: False, **more)


def for_ever(self: Rendezvous) -> None:
    """A store that does not answer is waited for."""


GRID: dict[str, Bug] = {
    "a lease without a fence": replaced(Leases, "holds", any_lease),
    "a lease that expires though its holder beats": replaced(
        Leases, "_is_over", beats_do_not_count
    ),
    "a file that is created by a rename": replaced(DiskFiles, "create", by_name),
    "a holder that never yields": replaced(lease, "YIELDS_S", 1e9),
    "a failed cell that is dropped alone": replaced(Worker, "run", ForgetfulWorker.run),
    "a failed cell that runs again": replaced(Worker, "_is_over", by_its_result),
}
FLEET: dict[str, Bug] = {
    "a dropped heartbeat check": replaced(Round, "count_lost_nodes", no_node_is_lost),
    "a full round that a waiting node ends": replaced(Rendezvous, "_changes", all_who_wait),
    "a node that does not notice a newer round": replaced(Rendezvous, "_changes", unaware),
    "a node that leaves without a word": replaced(Rendezvous, "leave", leave_alone),
    "a round of two sizes": replaced(RoundMessages, "agree", any_size),
    "a state that is written blindly": replaced(C10dRendezvousBackend, "set_state", blindly),
    "a silence that is not noticed": replaced(Rendezvous, "_check_silence", for_ever),
    "ranks that are left behind": ranks_are_left,
    "a key that is written in two steps": replaced(signed_store, "make_key", half_a_key),
    "a node that does not leave": replaced(fleet, "Launch", DeafLaunch),
}
BUGS: dict[str, tuple[str, Bug]] = {
    **{name: ("grid", bug) for name, bug in GRID.items()},
    **{name: ("fleet", bug) for name, bug in FLEET.items()},
    **{name: ("store", bug) for name, bug in STORE.items()},
}
