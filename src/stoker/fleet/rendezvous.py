"""Where the nodes of an elastic run meet: torchrun's rendezvous on a socket that we open.

Invariants: the store listens on the one address that the nodes were given, and the state that torch
unpickles from it is signed. No call to the store runs in the caller's thread: a link that drops all
packets cannot delay a stop signal. A store that does not answer for SILENCE_S is treated as lost.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from stoker.errors import Interrupted, StokerError
from stoker.fleet.addresses import Endpoint, Nodes, listening_socket
from stoker.fleet.signed_store import SignedStore

JOIN_S = 120
"""How long a node waits for the host, and for the least number of nodes."""
LAST_CALL_S = 5
"""How long a round with enough nodes waits for more."""
KEEP_ALIVE_S, KEEP_ALIVES_MISSED = 2, 3
SILENCE_S = 20.0
PULSES_MISSED = 12
"""A node whose pulse has not changed in this many polls, a second apart, is treated as lost."""
LEFT = 1 << 40
"""The pulse of a node that has left the round in order."""
CALL_THREADS = "stoker-rendezvous"
RESTART = "start the same command on every node again"
_POLL_S = 0.1
Answer = TypeVar("Answer")


def background_call(function: Callable[[], Answer]) -> Future[Answer]:
    """Call a function in a thread of its own; it may never return."""
    future: Future[Answer] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True, name=CALL_THREADS).start()
    return future


@dataclass(frozen=True)
class Round:
    """A round of training, as one of its nodes sees it."""

    node: int
    """This node's number in the round."""
    nodes: int
    store: Any
    address: str
    port: int
    """Where rank 0 listens."""
    listener: socket.socket | None
    """The socket there, on the node that has rank 0."""
    pulses: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The latest pulse of each node, and how many polls in a row have read the same."""

    def exchange_pulses(self) -> list[int]:
        """Count up this node's pulse in the store, and read those of all nodes."""
        return [self.store.add(f"pulse{n}", int(n == self.node)) for n in range(self.nodes)]

    def count_lost_nodes(self) -> int:
        """Poll the pulses once; returns how many nodes are lost."""
        for node, pulse in enumerate(self.exchange_pulses()):
            before, unchanged = self.pulses.get(node, (-1, 0))
            same = pulse == before and pulse < LEFT
            self.pulses[node] = (pulse, unchanged + 1 if same else 0)
        return sum(unchanged > PULSES_MISSED for _, unchanged in self.pulses.values())


@dataclass(frozen=True)
class NodeChanges:
    """What has changed among the nodes since a round began."""

    waiting: int = 0
    """Nodes that want to join."""
    lost: int = 0


class Rendezvous:
    """This node's membership in the rendezvous."""

    def __init__(
        self,
        endpoint: Endpoint,
        nodes: Nodes,
        key: bytes,
        stop: Callable[[], bool],
        address: str | None = None,
    ) -> None:
        """`address` is this machine's own, where other nodes need another than the host sees.
        Raises Interrupted if the host does not answer, or on a stop request."""
        # Torch's messages about lost sockets, with stack traces, add nothing to ours.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        # The store that torch would share between rounds listens on all addresses.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        self.endpoint, self._stop = endpoint, stop
        self._poll: Future[NodeChanges] | None = None
        self._polled_at = 0.0
        self._signed: SignedStore | None = None
        listener = endpoint.listen()
        self.hosts = listener is not None
        if listener is None:
            self._await_host()
        self.local_address = address or endpoint.local_address()
        self._inner = self._call(lambda: self._connect(nodes, key, listener), JOIN_S)

    def _await_host(self) -> None:
        give_up = time.monotonic() + JOIN_S
        while time.monotonic() < give_up:
            self._check_stop()
            try:
                socket.create_connection((self.endpoint.address, self.endpoint.port), 2).close()
                return
            except OSError:
                time.sleep(0.5)
        raise Interrupted(
            f"nothing answers at {self.endpoint}: start the same command on the node that has "
            "this address, then here again"
        )

    def _connect(self, nodes: Nodes, key: bytes, listener: socket.socket | None) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
        from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as c10d
        from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

        store = TCPStore(
            self.endpoint.address,
            self.endpoint.port,
            is_master=listener is not None,
            master_listen_fd=listener.detach() if listener else None,
            wait_for_workers=False,
            timeout=timedelta(seconds=SILENCE_S / 2),
        )
        self._signed = SignedStore(c10d.C10dRendezvousBackend(store, "stoker"), key)
        return dynamic.DynamicRendezvousHandler.from_backend(
            "stoker",
            store,
            self._signed,  # type: ignore[arg-type]
            nodes.least,
            nodes.most,
            local_addr=self.local_address,
            timeout=dynamic.RendezvousTimeout(
                join=timedelta(seconds=JOIN_S), last_call=timedelta(seconds=LAST_CALL_S)
            ),
            keep_alive_interval=KEEP_ALIVE_S,
            keep_alive_max_attempt=KEEP_ALIVES_MISSED,
        )

    def next_round(self) -> Round:
        """Leave the previous round, and wait until enough nodes want to begin another. Raises
        Interrupted if they do not, and StokerError if the state in the store is not this run's."""
        from torch.distributed import DistStoreError

        self._poll = None
        while True:
            with suppress(DistStoreError):  # rank 0's node left before it published its address
                return self._call(self._begin_round, float("inf"))

    def _begin_round(self) -> Round:
        info = self._inner.next_rendezvous()
        listener = listening_socket(self.local_address, 0) if info.rank == 0 else None
        if listener:
            info.store.set("door", f"{self.local_address}:{listener.getsockname()[1]}")
        rank_0 = Endpoint.parse(info.store.get("door").decode())
        return Round(info.rank, info.world_size, info.store, rank_0.host, rank_0.port, listener)

    def changes(self, round: Round) -> NodeChanges:
        """The changes of a poll that has finished since the last call. Starts a poll once a second,
        and never waits. Raises Interrupted if the store does not answer."""
        if self._poll is None and time.monotonic() - self._polled_at > 1.0:
            self._poll = background_call(
                lambda: NodeChanges(self._inner.num_nodes_waiting(), round.count_lost_nodes())
            )
            self._polled_at = time.monotonic()
        poll = self._poll
        if poll is None or not poll.done():
            self._check_silence()
            return NodeChanges()
        self._poll = None
        return self._answer(poll)

    def leave(self, round: Round, *, finished: bool, patience_s: float = 10.0) -> None:
        """Leave in order. The host of a finished run waits for the others, which need its store."""
        with suppress(StokerError, RuntimeError):
            self._call(
                lambda: round.store.add(f"pulse{round.node}", LEFT), patience_s, stoppable=False
            )
            give_up = time.monotonic() + patience_s
            while self.hosts and finished and time.monotonic() < give_up:
                pulses = self._call(round.exchange_pulses, patience_s, stoppable=False)
                if min(pulses) >= LEFT:
                    return
                time.sleep(_POLL_S)

    def close(self) -> None:
        """Send no more keep-alives. A thread inside torch's store while Python ends aborts the
        process: a caller that ends may still have CALL_THREADS."""
        if self._signed:
            self._signed.close()

    def _call(
        self, function: Callable[[], Answer], patience_s: float, *, stoppable: bool = True
    ) -> Answer:
        call, give_up = background_call(function), time.monotonic() + patience_s
        while not call.done():
            if stoppable:
                self._check_stop()
            self._check_silence()
            if time.monotonic() > give_up:
                raise self._lost()
            time.sleep(_POLL_S / 5)
        return self._answer(call)

    def _answer(self, call: Future[Answer]) -> Answer:
        from torch.distributed import DistStoreError
        from torch.distributed.elastic.rendezvous import api

        try:
            return call.result()
        except DistStoreError:
            raise
        except api.RendezvousTimeoutError as error:
            raise Interrupted(
                f"too few nodes joined at {self.endpoint} within {JOIN_S} s: {RESTART}"
            ) from error
        except api.RendezvousStateError as error:
            raise StokerError(
                f"{error} (at {self.endpoint}); the state was not read: choose another port, and "
                "start on every node with the same run directory"
            ) from error
        except (api.RendezvousError, RuntimeError, ValueError, OSError) as error:
            raise self._lost() from error

    def _check_silence(self) -> None:
        if self._signed and time.monotonic() - self._signed.answered_at > SILENCE_S:
            raise self._lost()

    def _check_stop(self) -> None:
        if self._stop():
            raise Interrupted("stopped while it waited for nodes: the same command waits again")

    def _lost(self) -> Interrupted:
        return Interrupted(f"the rendezvous at {self.endpoint} no longer answers: {RESTART}")
