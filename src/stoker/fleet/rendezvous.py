"""Where the nodes of an elastic run meet: torchrun's rendezvous on a socket that we open.

Invariants: the store listens on the one address that the nodes were given. All that a node reads
there and acts on is signed (`signed_store`): what a stranger writes or removes ends the nodes with
INTERRUPTED, and never reaches a rank. No call to the store or to a name server runs in the caller's
thread: a link that drops all packets cannot delay a stop signal. A store that does not answer for
SILENCE_S is treated as lost.
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
from stoker.fleet.addresses import JOIN_VARIABLE, Endpoint, Nodes, join_seconds, listening_socket
from stoker.fleet.signed_store import NodeLeft, RoundMessages, SignedStore
from stoker.host.limits import resident_memory
from stoker.text import say

CONNECT_S = 120.0
"""How long a node may take to import torch and to connect to a host that answers."""
LAST_CALL_S = 5
"""How long a round with enough nodes waits for more."""
KEEP_ALIVE_S, KEEP_ALIVES_MISSED = 2, 3
SILENCE_S = 20.0
STORE_BYTES = 1 << 30
"""The host leaves if its memory has grown by more: its own store needs a few megabytes."""
TRIES = 5
"""Rounds in a row that may end before rank 0's node has published its address."""
PULSES_MISSED = 12
"""A node whose pulse has not changed in this many polls, a second apart, is treated as lost."""
LEFT = 1 << 40
"""The pulse of a node that has left the round in order."""
NEWEST = "newest round"
"""The name under which the store has the round that began last."""
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

    threading.Thread(target=run, daemon=True, name="stoker-rendezvous").start()
    return future


def waited() -> str:
    return f"{join_seconds():g} s ({JOIN_VARIABLE} sets how many)"


@dataclass(frozen=True)
class Round:
    """A round of training, as one of its nodes sees it."""

    node: int
    """This node's number in the round."""
    nodes: int
    messages: RoundMessages
    address: str
    port: int
    """Where rank 0 listens."""
    listener: socket.socket | None
    """The socket there, on the node that has rank 0."""
    pulses: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The highest pulse of each node, and how many polls in a row have read no higher one."""

    writing: threading.Lock = field(default_factory=threading.Lock)
    written: list[int] = field(default_factory=lambda: [0])
    """The highest pulse that this node has written."""

    def set_pulse(self, pulse: int) -> None:
        """Write this node's pulse, never a lower one: a late poll must not undo LEFT."""
        with self.writing:
            self.written[0] = max(self.written[0], pulse)
            self.messages.put(f"pulse{self.node}", str(self.written[0]))

    def read_pulses(self) -> list[int]:
        """The pulses of all nodes; 0 for a node that has not written one."""
        names = [f"pulse{node}" for node in range(self.nodes)]
        return [int(self.messages.get(n)) if self.messages.has(n) else 0 for n in names]

    def count_lost_nodes(self) -> int:
        """Poll the pulses once; returns how many nodes are lost."""
        self.set_pulse(self.written[0] + 1)
        for node, pulse in enumerate(self.read_pulses()):
            before, unchanged = self.pulses.get(node, (-1, 0))
            # A lower pulse is an old message that was written again: it proves nothing.
            same = pulse <= before < LEFT
            self.pulses[node] = (max(pulse, before), unchanged + 1 if same else 0)
        return sum(unchanged > PULSES_MISSED for _, unchanged in self.pulses.values())

    def count_nodes_that_left(self) -> int:
        """How many nodes have left in order, as of the last poll."""
        return sum(pulse >= LEFT for pulse, _ in self.pulses.values())


@dataclass(frozen=True)
class NodeChanges:
    """What has changed among the nodes since a round began."""

    waiting: int = 0
    """Nodes that want to join, and can."""
    lost: int = 0
    expelled: bool = False
    """Whether the others, which took this node for lost, have begun another round."""


class ForeignContent(Interrupted):
    """The store holds what no node of this run wrote."""


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
        Raises Interrupted if the host does not answer, or on a stop request, and BadRequest where
        the endpoint's name leads to no address that other nodes reach."""
        # Torch's messages about lost sockets, with stack traces, add nothing to ours.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        # The store that torch would share between rounds listens on all addresses.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        self.endpoint, self._stop, self._key, self._most = endpoint, stop, key, nodes.most
        self._resident = resident_memory()
        self._poll: Future[NodeChanges] | None = None
        self._polled_at = 0.0
        self._signed: SignedStore | None = None
        self._place, note = self._unless_stopped(lambda: endpoint.resolved(address))
        listener = self._place.listen()
        self.hosts = listener is not None
        if listener is None:
            self._await_host()
        elif note:
            say(note)
        self.local_address = address or self._place.local_address()
        self._inner = self._call(lambda: self._connect(nodes, listener), CONNECT_S)

    def _await_host(self) -> None:
        place, give_up = (self._place.host, self._place.port), time.monotonic() + join_seconds()
        while time.monotonic() < give_up:
            try:
                self._unless_stopped(lambda: socket.create_connection(place, 2).close())
                return
            except OSError:
                time.sleep(0.5)
        raise Interrupted(
            f"nothing answered at {self.endpoint} within {waited()}: start the same command "
            "on the node that has this address, then here again"
        )

    def _connect(self, nodes: Nodes, listener: socket.socket | None) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
        from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as c10d
        from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

        # This logger has a level of its own, which it gets when it is imported.
        logging.getLogger("torch.distributed.elastic.utils.distributed").setLevel(logging.CRITICAL)
        # Torch's limit also holds during the last call, which begins when there are enough nodes.
        last_call_s = 2 * LAST_CALL_S if nodes.least < nodes.most else 0
        store = TCPStore(
            self._place.host,
            self._place.port,
            is_master=listener is not None,
            master_listen_fd=listener.detach() if listener else None,
            wait_for_workers=False,
            timeout=timedelta(seconds=SILENCE_S / 2),
        )
        self._rounds = RoundMessages(store, self._key, 0, 0)
        self._signed = SignedStore(c10d.C10dRendezvousBackend(store, "stoker"), self._key)
        return dynamic.DynamicRendezvousHandler.from_backend(
            "stoker",
            store,
            self._signed,  # type: ignore[arg-type]
            nodes.least,
            nodes.most,
            local_addr=self.local_address,
            timeout=dynamic.RendezvousTimeout(
                join=timedelta(seconds=join_seconds() + last_call_s),
                last_call=timedelta(seconds=LAST_CALL_S),
            ),
            keep_alive_interval=KEEP_ALIVE_S,
            keep_alive_max_attempt=KEEP_ALIVES_MISSED,
        )

    def next_round(self) -> Round:
        """Leave the previous round, and wait until enough nodes want to begin another. Raises
        Interrupted if they do not, and ForeignContent for what no node of this run wrote."""
        self._poll = None
        for _ in range(TRIES):
            with suppress(NodeLeft):
                return self._call(self._begin_round, float("inf"))
        raise self._lost()

    def _begin_round(self) -> Round:
        from torch.distributed import DistStoreError

        try:
            return self._agree_on_round()
        except DistStoreError as error:
            raise NodeLeft from error

    def _agree_on_round(self) -> Round:
        info = self._inner.next_rendezvous()
        listener = listening_socket(self.local_address, 0) if info.rank == 0 else None
        listens_at = f"{self.local_address}:{listener.getsockname()[1]}" if listener else None
        messages = RoundMessages(info.store, self._key, info.rank, info.world_size)
        try:
            rank_0 = Endpoint.parse(messages.agree(listens_at, self._announce))
            messages.wait_for_all()
        except BaseException:
            if listener:
                listener.close()
            raise
        return Round(info.rank, info.world_size, messages, rank_0.host, rank_0.port, listener)

    def changes(self, round: Round) -> NodeChanges:
        """The changes of a poll that has finished since the last call. Starts a poll once a second,
        and never waits. Raises Interrupted if the store does not answer."""
        if self._poll is None and time.monotonic() - self._polled_at > 1.0:
            self._poll = background_call(lambda: self._changes(round))
            self._check_memory()
            self._polled_at = time.monotonic()
        poll = self._poll
        if poll is None or not poll.done():
            self._check_silence()
            return NodeChanges()
        self._poll = None
        return self._answer(poll)

    def _changes(self, round: Round) -> NodeChanges:
        waiting, lost = self._inner.num_nodes_waiting(), round.count_lost_nodes()
        # A node may stay in the list of those that wait, beside a full round.
        is_full = round.nodes - round.count_nodes_that_left() >= self._most
        expelled = self._rounds.get(NEWEST) != round.messages.round
        return NodeChanges(0 if is_full else waiting, lost, expelled)

    def _announce(self, round: str) -> None:
        self._rounds.put(NEWEST, round)

    def leave(self, round: Round, *, finished: bool, patience_s: float = 10.0) -> None:
        """Leave in order. The host of a finished run waits for the others, which need its store."""
        with suppress(StokerError, RuntimeError):
            self._call(lambda: round.set_pulse(LEFT), patience_s, stoppable=False)
            give_up = time.monotonic() + patience_s
            while self.hosts and finished and time.monotonic() < give_up:
                pulses = self._call(round.read_pulses, patience_s, stoppable=False)
                if min(pulses) >= LEFT:
                    return
                time.sleep(_POLL_S)

    def close(self) -> None:
        """Send no more keep-alives. A thread inside torch's store while Python ends aborts the
        process: a caller that ends may still have such threads."""
        if self._signed:
            self._signed.close()

    def _unless_stopped(self, function: Callable[[], Answer]) -> Answer:
        """What a function returns that asks no store. Raises Interrupted on a stop request."""
        call = background_call(function)
        while True:
            self._check_stop()
            if call.done():
                return call.result()
            time.sleep(_POLL_S / 5)

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
        from torch.distributed.elastic.rendezvous import api

        try:
            return call.result()
        except NodeLeft:
            raise
        except api.RendezvousTimeoutError as error:
            raise Interrupted(
                f"too few nodes joined at {self.endpoint} within {waited()}: {RESTART}"
            ) from error
        except api.RendezvousStateError as error:
            raise self._foreign(str(error)) from error
        except ValueError as error:  # it may quote what a stranger wrote
            raise self._foreign("no node of this run wrote what the store holds") from error
        except Exception as error:  # whatever torch raises for an answer that it cannot read
            raise self._lost() from error

    def _check_silence(self) -> None:
        if self._signed and time.monotonic() - self._signed.answered_at > SILENCE_S:
            raise self._lost()

    def _check_memory(self) -> None:
        if self.hosts and resident_memory() - self._resident > STORE_BYTES:
            raise self._foreign(f"more than {STORE_BYTES >> 20} MiB were written into the store")

    def _foreign(self, reason: str) -> ForeignContent:
        return ForeignContent(
            f"{reason} (at {self.endpoint}): choose a port that only your nodes reach, and start "
            "on every node with the same run directory"
        )

    def _check_stop(self) -> None:
        if self._stop():
            raise Interrupted("stopped while it waited for nodes: the same command waits again")

    def _lost(self) -> Interrupted:
        return Interrupted(f"the rendezvous at {self.endpoint} no longer answers: {RESTART}")
