"""Links between machines, sockets, and torch's TCPStore on them.

Invariants: a packet that a cut link drops is sent again until the link is back, as TCP does: a call
over it returns late, and never by itself. A process that dies resets its connections; a machine
without power does not. Calls of one client's threads follow each other, as in torch.
"""

from __future__ import annotations

import errno
import socket as real_socket
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError

from simulation.standins import Lock
from simulation.world import Machine, Process, Waiters, World, current, sleep


@dataclass(eq=False)
class Node(Machine):
    """A machine with an address."""

    address: str = ""
    links: Links = None  # type: ignore[assignment]
    has_power: bool = True


@dataclass(eq=False)
class Links:
    """All links of a schedule, and who listens where."""

    world: World
    fineness: float
    """The share of packets that take time, so that others come in between."""
    cut: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of addresses: from the first to the second, packets are dropped."""
    slow_s: dict[str, float] = field(default_factory=dict)
    """How long packets of a machine take at most, where its link is slow."""
    troubles: int = 0
    """Faults that concern links, machines or launchers and are not over. Without any, calls need
    not look at each packet."""
    changed: Waiters = field(default_factory=Waiters)
    bound: dict[tuple[str, int], Socket] = field(default_factory=dict)
    servers: dict[tuple[str, int], StoreServer] = field(default_factory=dict)
    last_port: int = 30_000

    def passes(self, source: Node, target: Node) -> bool:
        """Whether packets get through, and something answers them."""
        if (source.address, target.address) in self.cut:
            return False
        return target.has_power and not target.paused

    def travel(self, source: Node, target: Node) -> None:
        """The way of a packet, except for dropped ones."""
        slow_s = [self.slow_s.get(node.address, 0.0) for node in (source, target)]
        if self.slow_s and any(slow_s):
            sleep(self.world.rng.random() * max(slow_s))
        elif self.world.rng.random() < self.fineness:
            sleep(self.world.rng.random() ** 4 * 0.2)


def this_node() -> Node:
    node = current().machine
    assert isinstance(node, Node)
    return node


class Socket:
    """A socket that listens, or a probe for the machine's own address."""

    def __init__(self, *kind: int) -> None:
        self.node, self.owner = this_node(), current()
        self.place = ("", 0)

    def setsockopt(self, *option: int) -> None: ...

    def bind(self, place: tuple[str, int]) -> None:
        address, port = place
        links = self.node.links
        if address != self.node.address:
            raise OSError(errno.EADDRNOTAVAIL, "cannot assign requested address")
        if not port:
            links.last_port = port = links.last_port + 1
        holder = links.bound.get((address, port))
        if holder and not holder.owner.dead:
            raise OSError(errno.EADDRINUSE, "address already in use")
        self.place = address, port
        links.bound[self.place] = self

    def listen(self, backlog: int) -> None: ...

    def connect(self, place: tuple[str, int]) -> None:
        self.place = self.node.address, 1

    def getsockname(self) -> tuple[str, int]:
        return self.place

    def fileno(self) -> int:
        return self.place[1]

    def detach(self) -> int:
        return self.place[1]

    def close(self) -> None: ...

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *error: object) -> None: ...


class Sockets:
    """The module `socket`."""

    socket = Socket
    AF_INET = real_socket.AF_INET
    SOCK_DGRAM, SOCK_STREAM = real_socket.SOCK_DGRAM, real_socket.SOCK_STREAM
    SOL_SOCKET, SO_REUSEADDR = real_socket.SOL_SOCKET, real_socket.SO_REUSEADDR

    @staticmethod
    def getaddrinfo(name: str, port: int, *kind: int) -> list[tuple[Any, ...]]:
        return [(*kind, 0, "", (name, port))]

    @staticmethod
    def create_connection(place: tuple[str, int], timeout: float) -> Socket:
        node = this_node()
        listener = node.links.bound.get(place)
        if listener is None or not reaches_both_ways(node, listener.node):
            sleep(timeout)
            raise TimeoutError("timed out")
        node.links.travel(node, listener.node)
        if listener.owner.dead:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        return Socket()


def reaches_both_ways(node: Node, other: Node) -> bool:
    if node is other:
        return True
    return node.links.passes(node, other) and (other.address, node.address) not in node.links.cut


class StoreServer:
    """The part of a TCPStore that keeps the values."""

    def __init__(self, node: Node, owner: Process) -> None:
        self.node, self.owner = node, owner
        self.values: dict[str, bytes] = {}
        self.waiting: dict[str, Waiters] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value
        if waiters := self.waiting.pop(key, None):
            waiters.wake()

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        value = self.values.get(key)
        if value is None and expected:
            return expected
        if value is None or value == expected:
            self.set(key, desired)
            return desired
        return value


class SimulatedStore:
    """torch.distributed.TCPStore."""

    def __init__(
        self,
        host_name: str,
        port: int,
        is_master: bool,
        master_listen_fd: int | None,
        wait_for_workers: bool,
        timeout: timedelta,
    ) -> None:
        self._node, self._timeout = this_node(), timeout.total_seconds()
        self._links, self._lock = self._node.links, Lock()
        place = host_name, port
        if is_master:
            self._links.servers[place] = StoreServer(self._node, current())
        self._server = self._connect(place)

    def _connect(self, place: tuple[str, int]) -> StoreServer:
        give_up = self._node.clock() + self._timeout
        while self._node.clock() < give_up:
            server = self._links.servers.get(place)
            if server and not server.owner.dead and reaches_both_ways(self._node, server.node):
                return server
            sleep(0.5)
        raise DistNetworkError("the client socket has timed out while trying to connect")

    def _pass(self, source: Node, target: Node) -> None:
        """Raises DistNetworkError where the server has ended."""
        links, server = self._links, self._server
        while True:
            passes = source is target or links.passes(source, target)
            if passes and server.owner.dead:
                raise DistNetworkError("Connection reset by peer")
            if passes and not server.owner.paused:
                return
            links.changed.wait()
            sleep(self._node.world.rng.random() * 2)

    @property
    def _is_plain(self) -> bool:
        """Whether nothing delays a call: it happens at once."""
        current().operate()
        links = self._links
        return (
            not links.troubles
            and not self._lock.held
            and not self._server.owner.dead
            and (not links.fineness or links.world.rng.random() > links.fineness)
        )

    def _ask(self) -> StoreServer:
        """A request arrives at the server."""
        self._links.travel(self._node, self._server.node)
        self._pass(self._node, self._server.node)
        return self._server

    def _answer(self) -> None:
        """The answer arrives here."""
        self._links.travel(self._server.node, self._node)
        self._pass(self._server.node, self._node)

    def set(self, key: str, value: bytes) -> None:
        if self._is_plain:
            self._server.set(key, value)
            return
        with self._lock:
            self._ask().set(key, value)
            self._answer()

    def get(self, key: str) -> bytes:
        if self._is_plain and key in self._server.values:
            return self._server.values[key]
        with self._lock:
            server, give_up = self._ask(), self._node.clock() + self._timeout
            while key not in server.values:
                if (left := give_up - self._node.clock()) <= 1e-9:
                    self._ask()
                    self._answer()
                    raise DistStoreError(f"wait timeout after {self._timeout} s, keys: {key}")
                server.waiting.setdefault(key, Waiters()).wait(min(left, 5.0))
                self._pass(self._node, server.node)
            value = server.values[key]
            self._answer()
            return value

    def check(self, keys: list[str]) -> bool:
        if self._is_plain:
            return all(key in self._server.values for key in keys)
        with self._lock:
            server = self._ask()
            there = all(key in server.values for key in keys)
            self._answer()
            return there

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self._is_plain:
            return self._server.compare_set(key, expected.encode(), desired.encode())
        with self._lock:
            value = self._ask().compare_set(key, expected.encode(), desired.encode())
            self._answer()
            return value


class SimulatedPrefixStore:
    """torch.distributed.PrefixStore."""

    def __init__(self, prefix: str, store: SimulatedStore) -> None:
        self.prefix, self.store = prefix, store

    def set(self, key: str, value: bytes) -> None:
        self.store.set(f"{self.prefix}/{key}", value)

    def get(self, key: str) -> bytes:
        return self.store.get(f"{self.prefix}/{key}")

    def check(self, keys: list[str]) -> bool:
        return self.store.check([f"{self.prefix}/{key}" for key in keys])

    @property
    def identity(self) -> tuple[Any, str]:
        """Which store, and which round in it."""
        return self.store._server, self.prefix
