"""The addresses at which nodes meet: parsing, listening sockets, and network interfaces.

Invariants: a socket listens on one address, never on all. The node that can bind the rendezvous
address hosts the rendezvous; no flag says which node that is. A name is resolved once. The name of
a machine never means loopback: other machines would not reach it there.

STOKER_JOIN_S=N how many seconds a node waits for the host, and for the least number of nodes [120]
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from stoker.errors import BadRequest
from stoker.stores.settings import seconds_of

JOIN_S, JOIN_VARIABLE = 120.0, "STOKER_JOIN_S"
_SIOCGIFADDR, _SIOCGIFFLAGS, _IFF_UP = 0x8915, 0x8913, 1


@dataclass(frozen=True)
class Nodes:
    """How many nodes a round of training has, at least and at most."""

    least: int
    most: int

    @classmethod
    def parse(cls, text: str) -> Nodes:
        least, colon, most = text.partition(":")
        try:
            nodes = cls(int(least), int(most if colon else least))
        except ValueError as error:
            raise BadRequest(f"--nodes must be MIN:MAX or a number, not '{text}'") from error
        if not 1 <= nodes.least <= nodes.most:
            raise BadRequest(f"--nodes MIN:MAX needs 1 <= MIN <= MAX, not '{text}'")
        return nodes

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True)
class Endpoint:
    """The address at which the nodes meet; the node that owns it hosts the store."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise BadRequest(f"--rendezvous must be HOST:PORT, not '{text}'")
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def resolved(self, own: str | None = None) -> tuple[Endpoint, str]:
        """The endpoint with the host's IPv4 address, and a note for the user where that is not the
        one that the name has here. `own` is this machine's address, if the user gave it. Raises
        BadRequest for a name that leads to no address which other machines reach."""
        try:
            answers = socket.getaddrinfo(self.host, self.port, socket.AF_INET, socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise BadRequest(f"--rendezvous {self.host}: unknown host, name its address") from error
        addresses = [str(place[0]) for *_, place in answers]
        address = next((each for each in addresses if not is_loopback(each)), addresses[0])
        if not is_loopback(address) or is_loopback(self.host) or "localhost" in self.host.lower():
            return Endpoint(address, self.port), ""
        here = socket.gethostname()
        # A host name may have its domain or not.
        if self.host.partition(".")[0].lower() != here.partition(".")[0].lower():
            raise BadRequest(
                f"{self.host} is {address} on this machine ({here}), which others do not reach: "
                "name an address of the first node in --rendezvous, on every node"
            )
        note = f"{self.host} is {address} on this machine (/etc/hosts)"
        own, reason = (own, "") if own else own_address(note)
        return Endpoint(own, self.port), f"{note}, so it listens on {own} instead{reason}"

    def listen(self) -> socket.socket | None:
        """A socket that listens at this address; None if another machine or program has it."""
        return listening_socket(self.host, self.port)

    def local_address(self) -> str:
        """The address of this machine from which it reaches this one. Sends nothing."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((self.host, self.port))
            return str(probe.getsockname()[0])


def is_loopback(address: str) -> bool:
    return address.startswith("127.")


def own_address(problem: str) -> tuple[str, str]:
    """The address at which others reach this machine, and why it was chosen among several. Raises
    BadRequest, which begins with the problem, where that cannot be known."""
    choices = {address: name for name, address in interfaces() if not is_loopback(address)}
    with suppress(OSError):  # no machine has this address (RFC 5737): the default route leads to it
        address = Endpoint("192.0.2.1", 9).local_address()
        if not is_loopback(address):
            return address, ", the address of its default route" if len(choices) > 1 else ""
    if len(choices) == 1:
        return next(iter(choices)), ""
    names = ", ".join(f"{address} ({name})" for address, name in choices.items())
    raise BadRequest(
        f"{problem}, and no default route says at which address others reach it: name one in "
        "--rendezvous, on every node: "
        + (names or "127.0.0.1 if all nodes are on this machine, which has no other")
    )


def listening_socket(address: str, port: int) -> socket.socket | None:
    """A socket that listens on one address; None if another machine or program has the address."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            return None
        raise BadRequest(f"cannot listen on {address}:{port}: {error.strerror}") from error
    return listener


def interface_of(address: str) -> str:
    """The network interface with this address: gloo would guess one from the host's name. What
    GLOO_SOCKET_IFNAME names takes precedence. Raises BadRequest if there is none."""
    if name := os.environ.get("GLOO_SOCKET_IFNAME"):
        return name
    for name, its_address in interfaces():
        if its_address == address:
            return name
    raise BadRequest(
        f"no interface that is up has the address {address}: name one in GLOO_SOCKET_IFNAME"
    )


def interfaces() -> Iterator[tuple[str, str]]:
    """Name and IPv4 address of each network interface that is up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with suppress(OSError):
                address = socket.inet_ntoa(fcntl.ioctl(probe, _SIOCGIFADDR, request)[20:24])
                flags = struct.unpack_from("H", fcntl.ioctl(probe, _SIOCGIFFLAGS, request), 16)[0]
                if flags & _IFF_UP:
                    yield name, address


def join_seconds() -> float:
    """How long a node waits for the host, and for the least number of nodes. Raises BadRequest."""
    return seconds_of(JOIN_VARIABLE, JOIN_S, 1, os.environ)


def meeting_point(nodes: str | None, rendezvous: str | None) -> tuple[Endpoint, Nodes] | None:
    """Where nodes meet and how many; None for this machine alone. Raises BadRequest if wrong."""
    if nodes is None and rendezvous is None:
        return None
    if nodes is None or rendezvous is None:
        raise BadRequest("--nodes and --rendezvous go together: how many nodes meet, and where")
    join_seconds()  # a wrong number is refused before anything is packed or measured
    return Endpoint.parse(rendezvous), Nodes.parse(nodes)
