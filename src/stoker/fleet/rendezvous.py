"""Where the nodes of an elastic run meet: torchrun's rendezvous, behind a door of our own.

Invariants: the store listens on the one address that the nodes were told, and what torch unpickles
from it is signed. No call to the store is made in the caller's thread: a network that swallows
packets cannot hold up a stop signal. Whoever has not been heard of for long is gone.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar

from stoker.errors import Interrupted, StokerError
from stoker.fleet.addresses import Endpoint, Nodes, listening
from stoker.fleet.signed_store import SignedStore

JOIN_S = 120
"""How long a node waits for the host, and for as many nodes as are needed at least."""
LAST_CALL_S = 5
"""How long a round that could begin waits for more nodes."""
KEEP_ALIVE_S, KEEP_ALIVES_MISSED = 2, 3
SILENCE_S = 20.0
"""A store that has not answered for so long is gone."""
PULSES_MISSED = 12
"""A node of the round that shows no sign of life at so many looks, a second apart, is lost."""
PARTED = 1 << 40
"""The pulse of a node that has left in order."""
ASKING = "stoker-rendezvous"
"""What threads that ask the store are called."""
_POLL_S = 0.1
Answer = TypeVar("Answer")


class Call(Generic[Answer]):
    """A call in a thread of its own, which may never come back."""

    def __init__(self, function: Callable[[], Answer]) -> None:
        self.began = time.monotonic()
        self._function = function
        self._answers: list[Answer] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name=ASKING)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.append(self._function())
        except Exception as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def answer(self) -> Answer:
        if self._error:
            raise self._error
        return self._answers[0]


@dataclass(frozen=True)
class Round:
    """A round of training: which of how many nodes this one is, and where its rank 0 is met."""

    node: int
    nodes: int
    store: Any
    address: str
    port: int
    door: socket.socket | None
    """The socket there, on the node that has rank 0."""
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The pulse of each node, and how many looks have found the same."""

    def pulses(self) -> list[int]:
        """Show that this node lives, and see who else does."""
        return [self.store.add(f"pulse{n}", int(n == self.node)) for n in range(self.nodes)]

    def look(self) -> int:
        """How many nodes of the round have not shown any life for many looks."""
        for node, pulse in enumerate(self.pulses()):
            before, times = self.seen.get(node, (-1, 0))
            same = pulse == before and pulse < PARTED
            self.seen[node] = (pulse, times + 1 if same else 0)
        return sum(times > PULSES_MISSED for _, times in self.seen.values())


@dataclass(frozen=True)
class News:
    """What has changed since a round began."""

    waiting: int = 0
    """Nodes that would like to join."""
    lost: int = 0
    """Nodes of the round that show no sign of life."""


class Rendezvous:
    """This node's place in the rendezvous of a run."""

    def __init__(
        self,
        place: Endpoint,
        nodes: Nodes,
        key: bytes,
        stop: Callable[[], bool],
        address: str | None = None,
    ) -> None:
        """`address` is this machine's own, where it shall not be the one that the host sees."""
        # Torch's own words about lost sockets, with stack traces, say less than ours.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        # The store it would share between rounds listens everywhere, and breaks rejoining.
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
        self.place, self._stop = place, stop
        self._asked: Call[News] | None = None
        self._asked_at = 0.0
        self._signed: SignedStore | None = None
        door = place.listen()
        self.hosts = door is not None
        if door is None:
            self._await_host()
        self.local_address = address or place.local_address()
        self._inner = self._ask(lambda: self._connect(nodes, key, door), JOIN_S)

    def _await_host(self) -> None:
        give_up = time.monotonic() + JOIN_S
        while time.monotonic() < give_up:
            self._heed_stop()
            try:
                socket.create_connection((self.place.address, self.place.port), 2).close()
                return
            except OSError:
                time.sleep(0.5)
        raise Interrupted(
            f"nobody answers at {self.place}: start the same command on the node that has "
            "this address, then here again"
        )

    def _connect(self, nodes: Nodes, key: bytes, door: socket.socket | None) -> Any:
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
        from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as c10d
        from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

        store = TCPStore(
            self.place.address,
            self.place.port,
            is_master=door is not None,
            master_listen_fd=door.detach() if door else None,
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
        """Leave the round before, and wait until enough nodes want to begin another."""
        from torch.distributed import DistStoreError

        self._asked = None
        while True:
            with suppress(DistStoreError):  # the node of rank 0 left before it could speak
                return self._ask(self._begin_round, float("inf"))

    def _begin_round(self) -> Round:
        info = self._inner.next_rendezvous()
        door = listening(self.local_address, 0) if info.rank == 0 else None
        if door:
            info.store.set("door", f"{self.local_address}:{door.getsockname()[1]}")
        met = Endpoint.parse(info.store.get("door").decode())
        return Round(info.rank, info.world_size, info.store, met.host, met.port, door)

    def news(self, round: Round) -> News:
        """What is new, at the latest look; asks once a second and never waits."""
        if self._asked is None and time.monotonic() - self._asked_at > 1.0:
            self._asked, self._asked_at = Call(lambda: self._look(round)), time.monotonic()
        asked = self._asked
        if asked is None or not asked.done:
            self._heed_silence()
            return News()
        self._asked = None
        return self._answer(asked)

    def _look(self, round: Round) -> News:
        return News(self._inner.num_nodes_waiting(), round.look())

    def part(self, round: Round, *, finished: bool, patience_s: float = 10.0) -> None:
        """Leave in order. When all is done the host stays a moment: the others say the same."""
        with suppress(StokerError, RuntimeError):
            self._ask(
                lambda: round.store.add(f"pulse{round.node}", PARTED), patience_s, heedful=False
            )
            give_up = time.monotonic() + patience_s
            while self.hosts and finished and time.monotonic() < give_up:
                pulses = self._ask(round.pulses, patience_s, heedful=False)
                if min(pulses) >= PARTED:
                    return
                time.sleep(_POLL_S)

    def close(self) -> None:
        """Show no more signs of life. A thread inside torch's store as Python ends aborts the
        process: whoever ends may have threads that are `ASKING` still."""
        if self._signed:
            self._signed.close()

    def _ask(
        self, function: Callable[[], Answer], patience_s: float, *, heedful: bool = True
    ) -> Answer:
        call = Call(function)
        while not call.done:
            if heedful:
                self._heed_stop()
            self._heed_silence()
            if time.monotonic() - call.began > patience_s:
                raise self._gone()
            time.sleep(_POLL_S / 5)
        return self._answer(call)

    def _answer(self, call: Call[Answer]) -> Answer:
        from torch.distributed import DistStoreError
        from torch.distributed.elastic.rendezvous import api

        try:
            return call.answer()
        except DistStoreError:
            raise
        except api.RendezvousTimeoutError as error:
            raise Interrupted(
                f"not enough nodes came to {self.place} within {JOIN_S} s: "
                "start the same command on every node again"
            ) from error
        except api.RendezvousStateError as error:
            raise StokerError(
                f"{error}, at {self.place}; it was not read: choose another port, and start on "
                "every node with the same run directory"
            ) from error
        except (api.RendezvousError, RuntimeError, ValueError, OSError) as error:
            raise self._gone() from error

    def _heed_silence(self) -> None:
        if self._signed and time.monotonic() - self._signed.heard_at > SILENCE_S:
            raise self._gone()

    def _heed_stop(self) -> None:
        if self._stop():
            raise Interrupted("stopped while it waited for nodes: the same command goes on")

    def _gone(self) -> Interrupted:
        return Interrupted(
            f"the rendezvous at {self.place} is gone: start the same command again on every "
            "node, it goes on from the newest checkpoint"
        )
